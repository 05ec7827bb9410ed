"""Runs on a Ray cluster: the one that `RAY_ADDRESS` names or that runs on this machine, else a local one.

Each worker is an actor with a workbench of its own. Ray restarts an actor that died and repeats its run. The embeddings
travel through Ray's object store, so the nodes need no common cache; models and data have to be found under the same
names on every node.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from types import ModuleType
from typing import Any

from neotta._extras import need
from neotta.errors import NeottaError
from neotta.evaluate.embeddings import Contents
from neotta.evaluate.engines.common import KILLED, LIVES, Outcome, chains, outcome
from neotta.evaluate.plan import Run
from neotta.evaluate.running import OnBatch
from neotta.evaluate.workbench import Workbench


def package() -> ModuleType:
    """Import Ray.

    Raises:
        MissingExtraError: It is not installed.
    """
    ray: ModuleType = need("ray", "the engine 'ray'")
    return ray


def execute(
    bench: Workbench, runs: Sequence[Run], jobs: int, keep: set[str], on_batch: OnBatch | None = None
) -> Generator[Outcome, None, None]:
    """Carry out runs on a cluster; `on_batch` is not called."""
    ray = package()
    mine = not ray.is_initialized()
    if mine:
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    try:
        yield from _outcomes(ray, bench, runs, jobs, keep)
    finally:
        if mine:
            ray.shutdown()


def _outcomes(
    ray: ModuleType, bench: Workbench, runs: Sequence[Run], jobs: int, keep: set[str]
) -> Generator[Outcome, None, None]:
    contents = ray.put(bench.embeddings.contents())
    kind = ray.remote(**_share(ray, bench, jobs))(Actor)
    todo = [[(run, len(chain) > 1) for run in chain] for chain in chains(runs)]
    actors = [kind.remote(bench.opener(cache=None), [contents]) for _ in range(min(jobs, len(todo)))]
    idle: list[tuple[Any, list[tuple[Run, bool]]]] = [(actor, []) for actor in actors]
    busy: dict[Any, tuple[Any, Run, list[tuple[Run, bool]]]] = {}
    try:
        while True:
            for actor, rest in idle:
                chain = rest or (todo.pop(0) if todo else [])
                if chain:
                    (run, resumable), *others = chain
                    busy[actor.execute.remote(run, resumable, keep)] = (actor, run, others)
            if not busy:
                return
            (done, *_), _ = ray.wait(list(busy))
            actor, run, rest = busy.pop(done)
            idle = [(actor, rest)]
            yield _outcome(ray, bench, run, done)
    finally:
        for actor in actors:
            ray.kill(actor)


def _outcome(ray: ModuleType, bench: Workbench, run: Run, done: Any) -> Outcome:
    try:
        found: Outcome = ray.get(done)
    except ray.exceptions.RayActorError as error:
        if error.actor_init_failed:
            raise NeottaError(f"a Ray worker cannot open the model or the data: {error}") from None
        return bench.failure(run, KILLED), None
    return found


def _share(ray: ModuleType, bench: Workbench, jobs: int) -> dict[str, Any]:
    """What each actor gets of the cluster, so that all of them have a place, and how often it may be lost."""
    resources = ray.cluster_resources()
    share: dict[str, Any] = {"num_cpus": min(1.0, resources.get("CPU", 1.0) / jobs)}
    if bench.head.weight.device.type == "cuda":
        share["num_gpus"] = min(1.0, resources.get("GPU", 1.0) / jobs)
    return {**share, "max_restarts": -1, "max_task_retries": LIVES - 1}


class Actor:
    """A workbench on some node of the cluster."""

    def __init__(self, opener: Callable[[], Workbench], contents: list[Any]) -> None:
        self._bench = opener()
        # In a list the reference itself arrives, as it has to if the actor is to be started again.
        embeddings: Contents = package().get(contents[0])
        self._bench.embeddings.take(embeddings)

    def execute(self, run: Run, resumable: bool, keep: set[str]) -> Outcome:
        """Carry a run out."""
        return outcome(self._bench, run, resumable, keep)

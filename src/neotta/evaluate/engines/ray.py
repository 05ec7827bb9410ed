"""Runs on a Ray cluster: the one that `RAY_ADDRESS` names or that runs on this machine, else one of this machine alone.

Each worker is an actor with a workbench of its own. Ray starts an actor that died again and repeats what it was at. The
embeddings travel through Ray's object store, so the nodes need no common cache; models and data have to be found under
the same names on every node.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Generator
from types import ModuleType
from typing import Any

from neotta._extras import need
from neotta.errors import NeottaError
from neotta.evaluate.embeddings import Contents
from neotta.evaluate.engines import KILLED, LIVES, Job, Setup, chains
from neotta.evaluate.plan import Run
from neotta.evaluate.records import Record


def package() -> ModuleType:
    """Import Ray.

    Raises:
        MissingExtraError: It is not installed.
    """
    ray: ModuleType = need("ray", "the engine 'ray'")
    return ray


def execute(job: Job) -> Generator[Record, None, None]:
    """Carry runs out on a cluster and yield their records."""
    ray = package()
    mine = not ray.is_initialized()
    if mine:
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    try:
        yield from _records(ray, job)
    finally:
        if mine:
            ray.shutdown()


def _records(ray: ModuleType, job: Job) -> Generator[Record, None, None]:
    contents = ray.put(job.bench.embeddings.contents())
    setup = dataclasses.replace(job.setup, cache=None)
    kind = ray.remote(**_share(ray, job))(Actor)
    todo = chains(job.runs)
    actors = [kind.remote(setup, [contents]) for _ in range(min(job.jobs, len(todo)))]
    idle: list[tuple[Any, list[Run]]] = [(actor, []) for actor in actors]
    busy: dict[Any, tuple[Any, Run, list[Run]]] = {}
    try:
        while True:
            for actor, rest in idle:
                chain = rest or (todo.pop(0) if todo else [])
                if chain:
                    busy[actor.execute.remote(chain[0])] = (actor, chain[0], chain[1:])
            if not busy:
                return
            (done, *_), _ = ray.wait(list(busy))
            actor, run, rest = busy.pop(done)
            idle = [(actor, rest)]
            yield _record(ray, job, run, done)
    finally:
        for actor in actors:
            ray.kill(actor)


def _record(ray: ModuleType, job: Job, run: Run, done: Any) -> Record:
    try:
        record: Record = ray.get(done)
    except ray.exceptions.RayActorError as error:
        if error.actor_init_failed:
            raise NeottaError(f"a Ray worker cannot open the model or the data: {error}") from None
        return job.bench.failure(run, KILLED)
    return record


def _share(ray: ModuleType, job: Job) -> dict[str, Any]:
    """What each actor gets of the cluster, so that all of them have a place, and how often it may be lost."""
    resources = ray.cluster_resources()
    share: dict[str, Any] = {"num_cpus": min(1.0, resources.get("CPU", 1.0) / job.jobs)}
    if job.bench.head.weight.device.type == "cuda":
        share["num_gpus"] = min(1.0, resources.get("GPU", 1.0) / job.jobs)
    return {**share, "max_restarts": -1, "max_task_retries": LIVES - 1}


class Actor:
    """A workbench on some node of the cluster."""

    def __init__(self, setup: Setup, contents: list[Any]) -> None:
        self._bench = setup.open()
        # In a list the reference itself arrives, as it has to if the actor is to be started again.
        embeddings: Contents = package().get(contents[0])
        self._bench.embeddings.take(embeddings)

    def execute(self, run: Run) -> Record:
        """Carry a run out."""
        return self._bench.execute(run)

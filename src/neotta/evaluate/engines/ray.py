"""Runs on a Ray cluster: the one that `RAY_ADDRESS` names or that runs on this machine, else one on loopback.

Each worker is an actor with a bench of its own. Ray restarts an actor that died and repeats its run. The embeddings
travel through Ray's object store, so the nodes need no common cache; models and data have to be found under the same
names on every node.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from types import ModuleType
from typing import Any

from neotta._extras import need
from neotta._warning import warn
from neotta.errors import NeottaError
from neotta.evaluate.bench import Bench
from neotta.evaluate.engines import LIVES, Outcome, hand_out
from neotta.evaluate.execute import execute as carry_out
from neotta.evaluate.plan import Run


def package() -> ModuleType:
    ray: ModuleType = need("ray", "the engine 'ray'")
    return ray


def execute(bench: Bench, runs: Sequence[Run], jobs: int, keep: set[str]) -> Generator[Outcome, None, None]:
    ray = package()
    mine = not ray.is_initialized()
    if mine:
        start(ray)
    try:
        contents = ray.put(bench.embeddings.contents())
        kind = ray.remote(**_share(ray, bench, jobs))(Actor)
        opener = bench.opener(cache=None)
        yield from hand_out(bench, runs, jobs, keep, lambda: _RayWorker(ray, kind.remote(opener, [contents])))
    finally:
        if mine:
            ray.shutdown()


def start(ray: ModuleType) -> None:
    """Connect to the cluster there is, or start one that only this machine can reach."""
    options: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR}
    if importlib.import_module("ray._private.services").canonicalize_bootstrap_address(None) is not None:
        ray.init(**options)
        return
    with _on_loopback():
        ray.init(address="local", **options)
    address = ray.util.get_node_ip_address()
    if not address.startswith("127.") and address != "::1":
        warn(f"this version of Ray listens on all network interfaces ({address}): run it behind a firewall")


@contextlib.contextmanager
def _on_loopback() -> Iterator[None]:
    """Let Ray listen on 127.0.0.1 alone, as it does on macOS and Windows: `_node_ip_address` is no way to ask for it.

    Ray reads the variable when it is imported, here and in every process it starts.
    """
    constants, variable = importlib.import_module("ray._private.ray_constants"), "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
    before = os.environ.get(variable), getattr(constants, "ENABLE_RAY_CLUSTER", None)
    os.environ[variable], constants.ENABLE_RAY_CLUSTER = "0", False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before[1]  # type: ignore[attr-defined]
        if before[0] is None:
            del os.environ[variable]
        else:
            os.environ[variable] = before[0]


class _RayWorker:
    def __init__(self, ray: ModuleType, actor: Any) -> None:
        self._ray, self._actor = ray, actor

    def execute(self, run: Run, keep: set[str]) -> Outcome | None:
        try:
            outcome: Outcome = self._ray.get(self._actor.execute.remote(run, keep))
        except self._ray.exceptions.RayActorError as error:
            if error.actor_init_failed:
                raise NeottaError(f"a Ray worker cannot open the model or the data: {error}") from None
            return None
        return outcome

    def end(self) -> None:
        self._ray.kill(self._actor)


def _share(ray: ModuleType, bench: Bench, jobs: int) -> dict[str, Any]:
    resources = ray.cluster_resources()
    share: dict[str, Any] = {"num_cpus": min(1.0, resources.get("CPU", 1.0) / jobs)}
    if bench.head.weight.device.type == "cuda":
        share["num_gpus"] = min(1.0, resources.get("GPU", 1.0) / jobs)
    return {**share, "max_restarts": -1, "max_task_retries": LIVES - 1}


class Actor:
    def __init__(self, opener: Callable[[], Bench], contents: list[Any]) -> None:
        self._bench = opener()
        # In a list the reference itself arrives, as it has to if the actor is to be started again.
        self._bench.embeddings.take(package().get(contents[0]))

    def execute(self, run: Run, keep: set[str]) -> Outcome:
        return carry_out(self._bench, run, keep)

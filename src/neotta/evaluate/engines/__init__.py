"""Where runs are carried out: in this process, in several, or on a Ray cluster.

An engine takes runs and yields their records as they are done, in any order. It is the sweep that writes them down, so
the records are the same whatever the engine. Closing the generator ends the work at once.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

from neotta.errors import OptionError
from neotta.evaluate.engines.common import Engine, Outcome, chains, outcome
from neotta.evaluate.plan import Run
from neotta.evaluate.workbench import Workbench

ENGINES = ("local", "ray")


def choose(engine: str, jobs: int) -> Engine:
    """The engine of a name, for so many runs at a time.

    Raises:
        OptionError: There is no such engine.
        MissingExtraError: It needs a package that is not installed.
    """
    if jobs < 1:
        raise OptionError(f"jobs must be at least 1, got {jobs}")
    if engine not in ENGINES:
        raise OptionError(f"there is no engine {engine!r}: choose {' or '.join(ENGINES)}")
    if engine == "ray":
        from neotta.evaluate.engines import ray

        ray.package()
        return ray.execute
    if jobs > 1:
        from neotta.evaluate.engines import processes

        return processes.execute
    return execute


def execute(bench: Workbench, runs: Sequence[Run], jobs: int, keep: set[str]) -> Generator[Outcome, None, None]:
    """Carry out one run after the other, in this process."""
    for chain in chains(runs):
        for run in chain:
            yield outcome(bench, run, len(chain) > 1, keep)

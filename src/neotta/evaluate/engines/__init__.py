"""Where runs are carried out: in this process, in several, or on a Ray cluster.

An engine takes runs and yields their records as they are done, in any order. It is the sweep that writes them down, so
the records are the same whatever the engine. Closing the generator ends the work at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

from neotta.errors import OptionError
from neotta.evaluate.plan import Plan, Run
from neotta.evaluate.records import Record
from neotta.evaluate.workbench import Workbench

Engine = Callable[["Job"], Generator[Record, None, None]]
ENGINES = ("local", "ray")
LIVES = 2
"""How many workers may die of one run before it counts as failed."""
KILLED = "the process that carried it out was killed twice (out of memory?)"


@dataclass(frozen=True)
class Setup:
    """What another process needs to open the same workbench; it finds the embeddings in the cache.

    Attributes:
        plan: What to measure.
        cache: A folder for embeddings.
        workers: Of the loaders; None chooses.
        device: Where the model runs; None chooses.
    """

    plan: Plan
    cache: Path | None
    workers: int | None
    device: str | None

    def open(self) -> Workbench:
        """Load the model and open the data."""
        return Workbench(self.plan, cache=self.cache, workers=self.workers, device=self.device)


@dataclass(frozen=True)
class Job:
    """What an engine is given.

    Attributes:
        bench: The workbench of this process.
        setup: How to open another one elsewhere.
        runs: What to do.
        jobs: How many at a time.
        progress: Is told the method and the number of samples after each batch, where the engine can.
    """

    bench: Workbench
    setup: Setup
    runs: Sequence[Run]
    jobs: int = 1
    progress: Callable[[str, int], None] | None = None


def chains(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs in a row that differ only in their number of samples.

    They belong on one workbench, one after the other: a longer one goes on there where a shorter one stopped.
    """
    alike = itertools.groupby(runs, lambda run: run.model_dump(exclude={"samples"}))
    return [list(chain) for _, chain in alike]


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
        from neotta.evaluate.engines.processes import execute

        return execute
    from neotta.evaluate.engines.local import execute

    return execute

"""What the engines share."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Sequence

from neotta.evaluate.plan import Run
from neotta.evaluate.predictions import RunResult
from neotta.evaluate.records import Record
from neotta.evaluate.running import OnBatch
from neotta.evaluate.workbench import Workbench

Outcome = tuple[Record, RunResult | None]
"""The record of a run, and its predictions if they are asked for."""
Engine = Callable[[Workbench, Sequence[Run], int, set[str], OnBatch | None], Generator[Outcome, None, None]]
"""Carries out runs, so many at a time, and keeps the predictions of those with certain keys."""

LIVES = 2
"""Number of workers that one run may kill before it counts as failed."""
KILLED = "the process that carried it out was killed twice (out of memory?)"


def chains(runs: Sequence[Run]) -> list[list[Run]]:
    """Consecutive runs that differ only in their number of samples.

    They belong on one workbench, one after the other: a longer one continues where a shorter one stopped.
    """
    alike = itertools.groupby(runs, lambda run: run.model_dump(exclude={"samples"}))
    return [list(chain) for _, chain in alike]


def outcome(bench: Workbench, run: Run, resumable: bool, keep: set[str], on_batch: OnBatch | None = None) -> Outcome:
    """Carry out one run."""
    record, result = bench.execute(run, on_batch, resumable=resumable)
    return record, result if record["key"] in keep else None

"""Where runs are carried out: in this process, in several, or on a Ray cluster.

An engine takes runs and yields their records as they are done, in any order. It is the sweep that writes them down, so
the records are the same whatever the engine. Closing the generator ends the work at once. This module has the engine
for this process, and hands work out to the workers of the others, each of which has a bench of its own.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Protocol

from neotta.evaluate.answers import RunResult
from neotta.evaluate.bench import Bench
from neotta.evaluate.execute import execute, failure
from neotta.evaluate.plan import Run
from neotta.evaluate.records import Record

Outcome = tuple[Record, RunResult | None]
"""The record of a run, and its predictions if they are asked for."""
Engine = Callable[[Bench, Sequence[Run], int, set[str]], Generator[Outcome, None, None]]
"""Carries out runs, a number at a time, and returns the predictions of those with certain keys."""

LIVES = 2
"""Number of workers that one run may kill before it counts as failed."""
KILLED = "the process that carried it out was killed twice (out of memory?)"


class Worker(Protocol):
    def execute(self, run: Run, keep: set[str]) -> Outcome | None:
        """Carry a run out; None if it killed its process too often."""

    def end(self) -> None:
        """Stop at once, whatever it is busy with."""


def here(bench: Bench, runs: Sequence[Run], jobs: int, keep: set[str]) -> Generator[Outcome, None, None]:
    for run in runs:
        yield execute(bench, run, keep)


def hand_out(
    bench: Bench, runs: Sequence[Run], jobs: int, keep: set[str], start: Callable[[], Worker]
) -> Generator[Outcome, None, None]:
    """Let workers carry out runs, and yield what comes of them. A thread waits for each worker."""
    workers = [start() for _ in range(min(jobs, len(runs)))]
    idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
    for worker in workers:
        idle.put(worker)

    def carry_out(run: Run) -> Outcome:
        worker = idle.get()
        try:
            return worker.execute(run, keep) or (failure(bench, run, KILLED), None)
        finally:
            idle.put(worker)

    threads = ThreadPoolExecutor(max(1, len(workers)))
    try:
        for done in as_completed([threads.submit(carry_out, run) for run in runs]):
            yield done.result()
    finally:
        for worker in workers:
            worker.end()
        threads.shutdown(cancel_futures=True)

"""Runs in several processes of this machine.

Each process opens a bench of its own, once, and is then given one run after the other. One that dies is replaced,
and its run is repeated.
"""

from __future__ import annotations

import functools
import multiprocessing
import tempfile
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import torch

from neotta._processes import begin_worker, interrupts_held, terminations_raised, usable_cores
from neotta.errors import NeottaError, StorageError
from neotta.evaluate.bench import Bench
from neotta.evaluate.engines import LIVES, Outcome, hand_out
from neotta.evaluate.execute import execute as carry_out
from neotta.evaluate.plan import Run

Opener = Callable[[], Bench]


def execute(bench: Bench, runs: Sequence[Run], jobs: int, keep: set[str]) -> Generator[Outcome, None, None]:
    loaders = usable_cores() // (2 * jobs) if bench.workers is None else bench.workers
    with terminations_raised(), tempfile.TemporaryDirectory(prefix="neotta-") as folder:
        opener = bench.opener(cache=bench.embeddings.saved_in(folder), workers=loaders)
        threads = max(1, torch.get_num_threads() // jobs)
        yield from hand_out(bench, runs, jobs, keep, functools.partial(_ProcessWorker, opener, threads))


class _ProcessWorker:  # with a pool of its own, so that it is known which run killed it
    def __init__(self, opener: Opener, threads: int) -> None:
        self._opener, self._threads = opener, threads
        self._pool: ProcessPoolExecutor | None = None
        self._ended = False

    def execute(self, run: Run, keep: set[str]) -> Outcome | None:
        for _ in range(LIVES):
            if self._pool is None:
                self._start()
            try:
                outcome: Outcome = self._call(_execute, run, keep)
            except BrokenProcessPool:
                self._pool = None
            else:
                return outcome
        return None

    def _start(self) -> None:
        for _ in range(LIVES + 1):
            # Fresh processes: a fork of a process that has threads may hang.
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(1, context, _begin, (self._threads,))
            try:
                self._call(_open, self._opener)
            except BrokenProcessPool:
                continue
            return
        raise NeottaError("processes die before they can begin (out of memory?): try fewer jobs")

    def _call(self, work: Callable[..., Any], *arguments: Any) -> Any:
        if self._ended or self._pool is None:
            raise NeottaError("the worker was stopped")
        with interrupts_held():  # it may start the process
            future = self._pool.submit(work, *arguments)
        return future.result()

    def end(self) -> None:
        self._ended = True
        if self._pool is not None:
            for process in list((self._pool._processes or {}).values()):  # Python 3.14 has terminate_workers()
                process.terminate()
            self._pool.shutdown(cancel_futures=True)


_BENCH: list[Bench] = []
"""The bench of a worker process."""


def _begin(threads: int) -> None:
    begin_worker()
    torch.set_num_threads(threads)


def _open(opener: Opener) -> None:
    try:
        _BENCH[:] = [opener()]
    except NeottaError as error:  # its own type may not survive pickling
        raise (StorageError if isinstance(error, StorageError) else NeottaError)(str(error)) from None


def _execute(run: Run, keep: set[str]) -> Outcome:
    return carry_out(_BENCH[0], run, keep)

"""Runs in several processes of this machine.

Each process opens a workbench of its own, once, and is then given one run after the other. One that dies is replaced,
and its run is repeated.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import torch

from neotta._processes import begin_worker, interrupts_held, usable_cores
from neotta.errors import NeottaError, StorageError
from neotta.evaluate.engines.common import KILLED, LIVES, Outcome, chains, outcome
from neotta.evaluate.plan import Run
from neotta.evaluate.running import OnBatch
from neotta.evaluate.workbench import Workbench

Opener = Callable[[], Workbench]


def execute(
    bench: Workbench, runs: Sequence[Run], jobs: int, keep: set[str], on_batch: OnBatch | None = None
) -> Generator[Outcome, None, None]:
    """Carry out runs in several processes; `on_batch` is not called.

    Raises:
        NeottaError: No process lives long enough to begin.
        StorageError: The cache cannot be written.
    """
    with tempfile.TemporaryDirectory(prefix="neotta-") as folder:
        cache = bench.embeddings.saved_in(folder)
        crew = _Crew(bench, runs, jobs, keep, bench.opener(cache=cache, workers=_loaders(bench, jobs)))
        try:
            yield from crew.outcomes()
        finally:
            crew.dismiss()


def _loaders(bench: Workbench, jobs: int) -> int:
    return usable_cores() // (2 * jobs) if bench.workers is None else bench.workers


class _Crew:
    """The processes, and the chains of runs that are left for them to do."""

    def __init__(self, bench: Workbench, runs: Sequence[Run], jobs: int, keep: set[str], opener: Opener) -> None:
        self._bench, self._jobs, self._keep, self._opener = bench, jobs, keep, opener
        self._todo = deque(deque(chain) for chain in chains(runs))
        self._deaths: Counter[str] = Counter()
        self._stillborn = 0
        self._workers: dict[Future[Any], _Worker] = {}

    def outcomes(self) -> Generator[Outcome, None, None]:
        """Keep everybody busy until all is done."""
        self._hire()
        while self._workers:
            done, _ = wait(self._workers, return_when=FIRST_COMPLETED)
            for future in done:
                worker = self._workers.pop(future)
                try:
                    found: Outcome | None = future.result()
                except BrokenProcessPool:
                    found = self._lost(worker)
                else:
                    self._occupy(worker)
                if found is not None:
                    yield found
            self._hire()

    def dismiss(self) -> None:
        """End all processes at once."""
        for worker in self._workers.values():
            worker.end()

    def _hire(self) -> None:
        """Start as many processes as can be of use."""
        beginning = sum(worker.run is None for worker in self._workers.values())
        while len(self._workers) < self._jobs and beginning < len(self._todo):
            worker = _Worker(max(1, torch.get_num_threads() // self._jobs))
            self._workers[worker.submit(_open, self._opener)] = worker
            beginning += 1

    def _occupy(self, worker: _Worker) -> None:
        if not worker.chain and self._todo:
            worker.chain = self._todo.popleft()
            worker.resumable = len(worker.chain) > 1
        if worker.chain:
            worker.run = worker.chain.popleft()
            self._workers[worker.submit(_execute, worker.run, worker.resumable, self._keep)] = worker
        else:
            worker.end()

    def _lost(self, worker: _Worker) -> Outcome | None:
        """A process died: its run is tried again, or was its second victim and gets a record that says so."""
        worker.end()
        run = worker.run
        if run is None:
            self._stillborn += 1
            if self._stillborn > LIVES:
                raise NeottaError("processes die before they can begin (out of memory?): try fewer jobs")
            return None
        self._deaths[run.model_dump_json()] += 1
        failed = self._deaths[run.model_dump_json()] >= LIVES
        if not failed:
            worker.chain.appendleft(run)
        if worker.chain:
            self._todo.appendleft(worker.chain)
        return (self._bench.failure(run, KILLED), None) if failed else None


class _Worker:
    """One process. A pool for each, so that it is known which run was the death of one.

    Attributes:
        run: What it is busy with; None while it opens the workbench.
        chain: What it will be given next.
        resumable: Whether it has to keep checkpoints for the runs of the chain.
    """

    def __init__(self, threads: int) -> None:
        # Fresh processes: a fork of a process that has threads may hang.
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(1, context, _begin, (threads,))
        self.run: Run | None = None
        self.chain: deque[Run] = deque()
        self.resumable = False

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        with interrupts_held():  # it may start the process
            return self._pool.submit(work, *arguments)

    def end(self) -> None:
        """End it at once."""
        for process in list((self._pool._processes or {}).values()):  # Python 3.14 has terminate_workers()
            process.terminate()
        self._pool.shutdown(cancel_futures=True)


_BENCH: list[Workbench] = []
"""The workbench of a worker process."""


def _begin(threads: int) -> None:
    begin_worker()
    torch.set_num_threads(threads)


def _open(opener: Opener) -> None:
    try:
        _BENCH[:] = [opener()]
    except NeottaError as error:  # its own type may not survive pickling
        raise (StorageError if isinstance(error, StorageError) else NeottaError)(str(error)) from None


def _execute(run: Run, resumable: bool, keep: set[str]) -> Outcome:
    return outcome(_BENCH[0], run, resumable, keep)

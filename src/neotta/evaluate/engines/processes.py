"""Runs in several processes of this machine.

Each process opens a workbench of its own, once, and is then given one run after the other. One that dies is replaced,
and its run is repeated.
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
from collections import Counter, deque
from collections.abc import Generator
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from neotta._processes import begin_worker, interrupts_held, usable_cores
from neotta.errors import NeottaError, StorageError
from neotta.evaluate.engines import KILLED, LIVES, Job, Setup, chains
from neotta.evaluate.plan import Run
from neotta.evaluate.records import Record


def execute(job: Job) -> Generator[Record, None, None]:
    """Carry runs out in several processes and yield their records.

    Raises:
        NeottaError: No process lives long enough to begin.
        StorageError: The cache cannot be written to.
    """
    crew = _Crew(job)
    try:
        yield from crew.records()
    finally:
        crew.dismiss()


class _Crew:
    """The processes, and the chains of runs that are left for them to do."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._todo = deque(deque(chain) for chain in chains(job.runs))
        self._deaths: Counter[int] = Counter()  # by the identity of a run: it holds what cannot be hashed
        self._stillborn = 0
        workers = usable_cores() // (2 * job.jobs) if job.setup.workers is None else job.setup.workers
        self._setup = dataclasses.replace(job.setup, workers=workers)
        self._threads = max(1, torch.get_num_threads() // job.jobs)
        self._workers: list[_Worker] = []

    def records(self) -> Generator[Record, None, None]:
        """Keep everybody busy until all is done."""
        self._hire()
        while self._workers:
            by_line: dict[Any, _Worker] = {worker.line: worker for worker in self._workers}
            for line in wait(list(by_line)):
                worker = by_line[line]
                try:
                    kind, content = worker.line.recv()
                except (EOFError, OSError):
                    record = self._lost(worker)
                else:
                    if kind in _ERRORS:
                        raise _ERRORS[kind](content)
                    record = content
                    self._occupy(worker)
                if record is not None:
                    yield record
            self._hire()

    def dismiss(self) -> None:
        """End all processes at once."""
        for worker in self._workers:
            worker.end()

    def _hire(self) -> None:
        """Start as many processes as can be of use."""
        beginning = sum(worker.run is None for worker in self._workers)
        while len(self._workers) < self._job.jobs and beginning < len(self._todo):
            self._workers.append(_Worker(self._setup, self._threads))
            beginning += 1

    def _occupy(self, worker: _Worker) -> None:
        if not worker.chain and self._todo:
            worker.chain = self._todo.popleft()
        if worker.chain:
            worker.give(worker.chain.popleft())
        else:
            self._workers.remove(worker)
            worker.end()

    def _lost(self, worker: _Worker) -> Record | None:
        """A process died: its run is tried again, or was its second victim and gets a record that says so."""
        self._workers.remove(worker)
        worker.end()
        run = worker.run
        if run is None:
            self._stillborn += 1
            if self._stillborn > LIVES:
                raise NeottaError("processes die before they can begin (out of memory?): try fewer jobs")
            return None
        self._deaths[id(run)] += 1
        failed = self._deaths[id(run)] >= LIVES
        if not failed:
            worker.chain.appendleft(run)
        if worker.chain:
            self._todo.appendleft(worker.chain)
        return self._job.bench.failure(run, KILLED) if failed else None


class _Worker:
    """A process and the line to it, on which it says that it is ready, then gives a record for every run.

    Attributes:
        line: Our end of the connection.
        run: What it is busy with; None before it is ready.
        chain: What it will be given next.
    """

    def __init__(self, setup: Setup, threads: int) -> None:
        # Fresh processes: a fork of a process that has threads may hang. Not daemons: loaders start processes too.
        context = multiprocessing.get_context("spawn")
        self.line, theirs = context.Pipe()
        self.run: Run | None = None
        self.chain: deque[Run] = deque()
        self._process = context.Process(target=_serve, args=(theirs, setup, threads))
        with interrupts_held():
            self._process.start()
        theirs.close()

    def give(self, run: Run) -> None:
        """Give it something to do. If it is dead, that shows when its answer is waited for."""
        self.run = run
        with contextlib.suppress(OSError):
            self.line.send(run)

    def end(self) -> None:
        """End it at once."""
        self.line.close()
        self._process.terminate()
        self._process.join()


_ERRORS = {"error": NeottaError, "storage": StorageError}


def _serve(line: Connection, setup: Setup, threads: int) -> None:
    """What a worker does: open the workbench, and carry out runs until the line is closed."""
    begin_worker()
    torch.set_num_threads(threads)
    with contextlib.suppress(EOFError, BrokenPipeError):
        try:
            bench = setup.open()
            line.send(("ready", None))
            while True:
                line.send(("record", bench.execute(line.recv())))
        except StorageError as error:
            line.send(("storage", str(error)))
        except NeottaError as error:
            line.send(("error", str(error)))

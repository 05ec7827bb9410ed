"""Carrying out a whole plan: what is recorded is left out, what is done is recorded at once."""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from neotta.data.drawing import Indices
from neotta.errors import NeottaError, StorageError
from neotta.evaluate.engines import Job, Setup, chains, choose
from neotta.evaluate.plan import Plan, Run
from neotta.evaluate.records import Record, Records
from neotta.evaluate.workbench import Workbench

SYNC_EVERY = 1.0
"""Seconds of records that a power failure may cost."""


class Summary(NamedTuple):
    """How a sweep ended.

    Attributes:
        done: Runs carried out and recorded, also those that failed.
        skipped: Runs that were recorded before, or asked for twice.
        failed: The records of those that failed.
        keys: The keys of all runs of the plan that have one: their records are in the file.
    """

    done: int
    skipped: int
    failed: list[Record]
    keys: list[str]


class Watcher:
    """Is told how a sweep goes; a subclass shows it."""

    def opened(self, bench: Workbench) -> None:
        """The model and the data are open."""

    def planned(self, runs: Sequence[Run], skipped: int, images: int) -> None:
        """Say what will be done.

        Args:
            runs: What is left to do.
            skipped: How many runs need not be done.
            images: How many images the encoder has to see first.
        """

    def encoded(self, count: int) -> None:
        """Some more images were encoded."""

    def advanced(self, method: str, count: int) -> None:
        """A method saw some more samples; not every engine tells."""

    def recorded(self, record: Record) -> None:
        """A run is done and recorded."""

    def measuring(self, method: str, done: int, total: int) -> None:
        """The time and memory of a method are measured next; `done` of `total` measurements are made."""


def sweep(
    plan: Plan,
    records_path: str | os.PathLike[str],
    *,
    cache: str | os.PathLike[str] | None = None,
    force: bool = False,
    jobs: int = 1,
    engine: Literal["local", "ray"] = "local",
    device: str | None = None,
    workers: int | None = None,
    progress: Watcher | None = None,
) -> Summary:
    """Carry out the runs of a plan that are not recorded yet.

    Each record is in the file as soon as its run is done, so an interrupted sweep goes on where it stopped. A run that
    fails is recorded with its error, and tried again next time.

    Args:
        plan: What to measure.
        records_path: The `.jsonl` file of records; it need not exist.
        cache: A folder for embeddings; None keeps them for this sweep only.
        force: Carry out also what is recorded; the new records count.
        jobs: How many runs at a time, each in a process of its own if there are several.
        engine: `"local"` for this machine, `"ray"` for a Ray cluster.
        device: Where the model runs; by default a GPU if there is one.
        workers: Processes that load images; None chooses.
        progress: Is told how it goes.

    Raises:
        OptionError: A method, option or engine is wrong; nothing was done then.
        StorageError: Results or cache cannot be written; what was recorded is safe.
    """
    execute, watcher, records = choose(engine, jobs), progress or Watcher(), Records(records_path)
    with _folder(cache, jobs > 1 and engine == "local") as folder:
        setup = Setup(plan, folder, workers, device)
        bench = setup.open()
        watcher.opened(bench)
        todo, keys, skipped = _left(bench, set() if force else records.keys())
        wanted = _wanted(bench, todo)
        watcher.planned(todo, skipped, sum(len(indices) for indices in wanted.values()))
        for domain, indices in wanted.items():
            with _left_to_the_runs():
                bench.embeddings.fill(bench.data.dataset(domain), indices, watcher.encoded)
        failed: list[Record] = []
        synced = time.monotonic()
        with contextlib.closing(execute(Job(bench, setup, todo, jobs, watcher.advanced))) as done:
            for record in done:
                due = time.monotonic() - synced > SYNC_EVERY
                records.append(record, sync=due)
                synced = time.monotonic() if due else synced
                watcher.recorded(record)
                failed += [record] if record["status"] == "failed" else []
    return Summary(len(todo), skipped, failed, keys)


def recorded(plan: Plan, records_path: str | os.PathLike[str], *, device: str | None = None) -> tuple[list[str], int]:
    """Look up what is recorded of a plan, and measure nothing.

    Returns:
        The keys of all its runs, and how many of these are not recorded.
    """
    todo, keys, _ = _left(Setup(plan, None, None, device).open(), Records(records_path).keys())
    return keys, len(todo)


def _left(bench: Workbench, recorded: set[str]) -> tuple[list[Run], list[str], int]:
    """The runs that are left to do, the keys of all, and how many need not be done."""
    todo: list[Run] = []
    seen = set(recorded)
    keys: dict[str, None] = {}
    skipped = 0
    for run in bench.runs():
        bench.check(run)
        try:
            key = bench.key(run)
        except NeottaError:  # its data cannot be used: it will fail, and be recorded so
            todo.append(run)
            continue
        keys[key] = None
        if key in seen:
            skipped += 1
        else:
            seen.add(key)
            todo.append(run)
    return _shorter_first(todo), list(keys), skipped


def _shorter_first(runs: list[Run]) -> list[Run]:
    """Order runs that differ only in their number of samples; -1 is all of them."""

    def length(run: Run) -> float:
        return math.inf if run.samples < 0 else run.samples

    return [run for chain in chains(runs) for run in sorted(chain, key=length)]


def _wanted(bench: Workbench, todo: Sequence[Run]) -> dict[str, Indices]:
    """The samples that the encoder has yet to see, by domain."""
    usable = []
    for run in todo:
        with _left_to_the_runs():
            bench.phases(run)
            usable.append(run)
    return bench.wanted(usable)


@contextlib.contextmanager
def _left_to_the_runs() -> Iterator[None]:
    """Pass over what cannot be used: the runs that need it will fail with the same error, and record it."""
    try:
        yield
    except StorageError:
        raise
    except Exception:
        return


@contextlib.contextmanager
def _folder(cache: str | os.PathLike[str] | None, needed: bool) -> Iterator[Path | None]:
    """The folder for embeddings; where several processes need one and none is given, one for the time being."""
    if cache is not None or not needed:
        yield None if cache is None else Path(cache).expanduser()
        return
    with tempfile.TemporaryDirectory(prefix="neotta-") as folder:
        yield Path(folder)

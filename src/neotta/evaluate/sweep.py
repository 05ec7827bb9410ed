"""Carrying out a whole plan: what is recorded is skipped, what is done is recorded at once."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from neotta.errors import NeottaError, OptionError, StorageError
from neotta.evaluate import engines
from neotta.evaluate.plan import Plan, Run
from neotta.evaluate.predictions import RunResult
from neotta.evaluate.provenance import about_older, question
from neotta.evaluate.records import Record, Records
from neotta.evaluate.workbench import Workbench

SYNC_EVERY = 1.0
"""Seconds of records that a power failure may cost."""


@dataclass
class Summary:
    """How a sweep ended.

    Attributes:
        keys: The keys of all runs of the plan that have one: their records are in the file.
        skipped: Number of runs that were recorded before, or asked for twice.
        done: Number of runs carried out and recorded, including those that failed.
        failed: The records of those that failed.
        results: The predictions that were asked for, by key, of the runs carried out.
    """

    keys: list[str]
    skipped: int
    done: int = 0
    failed: list[Record] = field(default_factory=list)
    results: dict[str, RunResult] = field(default_factory=dict)


class Watcher:
    """Receives progress events."""

    def planned(self, runs: Sequence[Run], skipped: int, images: int) -> None:
        """The sweep begins.

        Args:
            runs: The runs to carry out.
            skipped: Number of runs that are recorded already.
            images: Number of images to encode first.
        """

    def outdated(self, line: str) -> None:
        """Some runs are recorded, but by other code, and will be carried out again; the line says so."""

    def calibrating(self, done: int, total: int) -> None:
        """The unadapted model is measured, on which an order depends: `done` of at most `total` images are encoded."""

    def encoded(self, count: int) -> None:
        """Some more images were encoded."""

    def recorded(self, record: Record) -> None:
        """A run is done and recorded."""

    def measuring(self, method: str, done: int, total: int) -> None:
        """The time and memory of a method are measured next, after `done` of `total` measurements."""


def sweep(
    bench: Workbench,
    plan: Plan,
    records_path: str | os.PathLike[str],
    *,
    force: bool = False,
    jobs: int = 1,
    engine: Literal["local", "ray"] = "local",
    keep: Collection[str] = (),
    progress: Watcher | None = None,
    on_record: Callable[[Record], None] | None = None,
) -> Summary:
    """Carry out the runs of a plan that are not recorded yet.

    Each record is in the file as soon as its run is done, so an interrupted sweep can be continued. A run that fails is
    recorded with its error, and tried again next time.

    Args:
        bench: The model and the data.
        plan: What to measure.
        records_path: The `.jsonl` file of records; it need not exist.
        force: Repeat runs that are recorded; the new records count.
        jobs: Number of runs at a time, each in a process of its own if there are several.
        engine: `"local"` for this machine, `"ray"` for a Ray cluster.
        keep: Keys of runs whose predictions are returned, too.
        progress: Receives progress events.
        on_record: Called with each record once it is in the file, as `neotta.evaluate.loggers` needs it.

    Raises:
        OptionError: A method, option or engine is wrong; nothing was done then.
        DataError: Records cannot be appended to a file of this kind; nothing was done then.
        StorageError: Results or cache cannot be written; what was recorded is safe.
    """
    execute, watcher, records = choose_engine(engine, jobs), progress or Watcher(), Records(records_path)
    records.check_appendable()
    bench.calibrate(plan, watcher.calibrating)
    todo, keys, skipped = _left(bench, plan, set() if force else records.keys())
    if line := about_older(list(_answers(bench, todo, records).values()), len(todo) + skipped):
        watcher.outdated(f"{line}: they are measured again")
    _encode(bench, todo, skipped, watcher)
    summary = Summary(keys, skipped)
    synced = time.monotonic()
    with contextlib.closing(execute(bench, todo, jobs, set(keep))) as outcomes:
        for record, result in outcomes:
            due = time.monotonic() - synced > SYNC_EVERY
            records.append(record, sync=due)
            synced = time.monotonic() if due else synced
            watcher.recorded(record)
            if on_record is not None:
                on_record(record)
            summary.done += 1
            summary.failed += [record] if record["status"] == "failed" else []
            if result is not None:
                summary.results[record["key"]] = result
    return summary


def choose_engine(name: str, jobs: int) -> engines.Engine:
    """The engine of a name, for a number of runs at a time.

    Raises:
        OptionError: There is no such engine.
        MissingExtraError: It needs a package that is not installed.
    """
    if jobs < 1:
        raise OptionError(f"jobs must be at least 1, got {jobs}")
    if name not in ("local", "ray"):
        raise OptionError(f"there is no engine {name!r}: choose local or ray")
    if name == "ray":
        from neotta.evaluate.engines import ray

        ray.package()
        return ray.execute
    if jobs > 1:
        from neotta.evaluate.engines import processes

        return processes.execute
    return engines.execute


def recorded(bench: Workbench, plan: Plan, records_path: str | os.PathLike[str]) -> tuple[list[str], int]:
    """Look up what is recorded of a plan, and measure nothing.

    Returns:
        The keys of the records of its runs, older ones where there are no others, and the number of runs without any.
    """
    records = Records(records_path)
    todo, keys, _ = _left(bench, plan, records.keys())
    instead = _answers(bench, todo, records)
    return [*keys, *(record["key"] for record in instead.values())], len(todo) - len(instead)


def _answers(bench: Workbench, runs: Sequence[Run], records: Records) -> dict[str, Record]:
    """Records that other code made of runs, by their question."""
    known = {question(record): record for record in records.read() if record.get("status") == "ok"} if runs else {}
    found = {}
    for run in runs:
        with contextlib.suppress(NeottaError):  # its data cannot be used
            asked = bench.question(run)
            if asked in known and known[asked]["key"] != bench.key(run):
                found[asked] = known[asked]
    return found


def _left(bench: Workbench, plan: Plan, recorded: set[str]) -> tuple[list[Run], list[str], int]:
    """The runs to carry out, the keys of all, and the number of those that need not be done."""
    todo: list[Run] = []
    seen = set(recorded)
    keys: dict[str, None] = {}
    skipped = 0
    for run in bench.runs(plan):
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
    """Sort runs that differ only in their number of samples; -1 is all of them."""

    def length(run: Run) -> float:
        return math.inf if run.samples < 0 else run.samples

    return [run for chain in engines.chains(runs) for run in sorted(chain, key=length)]


def _encode(bench: Workbench, todo: Sequence[Run], skipped: int, watcher: Watcher) -> None:
    """Announce the runs, and let the encoder see the images that they need."""
    usable = []
    for run in todo:
        with _left_to_the_runs():
            bench.orders(run)
            usable.append(run)
    wanted = bench.wanted(usable)
    watcher.planned(todo, skipped, sum(len(indices) for indices in wanted.values()))
    for domain, indices in wanted.items():
        with _left_to_the_runs():
            bench.embeddings.fill(bench.data.dataset(domain), indices, watcher.encoded)


@contextlib.contextmanager
def _left_to_the_runs() -> Iterator[None]:
    """Ignore data that cannot be used: the runs that need it will fail with the same error, and record it."""
    try:
        yield
    except StorageError:
        raise
    except Exception:
        return

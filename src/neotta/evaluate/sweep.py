"""Carrying out a whole plan: what is recorded is skipped, what is done is recorded at once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from neotta.adapters.registry import find
from neotta.errors import ModelError, NeottaError, OptionError, StorageError
from neotta.evaluate import engines
from neotta.evaluate.answers import RunResult
from neotta.evaluate.bench import Bench
from neotta.evaluate.execute import about, titles
from neotta.evaluate.key import run_key
from neotta.evaluate.plan import Plan, Run
from neotta.evaluate.provenance import about_older
from neotta.evaluate.records import Record, Records, content_key


@dataclass
class Summary:
    keys: list[str]  # the keys of all runs of the plan that have one: their records are in the file
    skipped: int  # number of runs that were recorded before, or asked for twice
    done: int = 0  # number of runs carried out and recorded, including those that failed
    failed: list[Record] = field(default_factory=list)  # the records of runs that failed
    # the predictions that were asked for, by key, of the runs carried out
    results: dict[str, RunResult] = field(default_factory=dict)


class Watcher:
    def planned(self, runs: Sequence[Run], skipped: int, images: int) -> None:
        """The sweep begins."""

    def noted(self, line: str) -> None:
        """The line says which methods are left out, or which runs are measured again, and why."""

    def encoded(self, count: int) -> None:
        """Some more images were encoded."""

    def recorded(self, record: Record) -> None:
        """A run is done and recorded."""

    def measuring(self, method: str, done: int, total: int) -> None:
        """The time and memory of a method are measured next, after `done` of `total` measurements."""


def sweep(
    bench: Bench,
    plan: Plan,
    records: Records,
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
    """
    execute, watcher = choose_engine(engine, jobs), progress or Watcher()
    records.check_appendable()
    seen = set() if force else records.keys()
    keys: list[str] = []
    todo: list[Run] = []
    usable: list[Run] = []  # the others fail, and are recorded so
    skipped = 0
    for run in bench.runs(plan):
        bench.options(run)  # wrong ones raise an error before anything is done
        with contextlib.suppress(NeottaError):  # its data cannot be used
            keys.append(key := run_key(bench, run))
            if key in seen:
                skipped += 1
                continue
            seen.add(key)
            usable.append(run)
        todo.append(run)
    if line := about_older(_answers(bench, usable, records), len(todo) + skipped):
        watcher.noted(f"{line}: they are measured again")
    wanted = bench.wanted(usable)
    watcher.planned(todo, skipped, sum(map(len, wanted.values())))
    for domain, indices in wanted.items():
        try:
            bench.embeddings.fill(bench.data.dataset(domain), indices, watcher.encoded)
        except StorageError:
            raise
        except Exception:  # the runs that need these images will say so
            continue
    summary = Summary(list(dict.fromkeys(keys)), skipped)
    with contextlib.closing(execute(bench, todo, jobs, set(keep))) as outcomes:
        for record, result in outcomes:
            records.append(record)
            watcher.recorded(record)
            if on_record is not None:
                on_record(record)
            summary.done += 1
            summary.failed += [record] if record.failed else []
            if result is not None:
                summary.results[record.key] = result
    return summary


def choose_engine(name: str, jobs: int) -> engines.Engine:
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
    return engines.here


def _answers(bench: Bench, runs: Sequence[Run], records: Records) -> list[Record]:
    """Records of other revisions of the methods of runs."""
    known = {record.question: record for record in records.read() if record.status == "ok"} if runs else {}
    asked = dict.fromkeys(Record.make(about(bench, run)).question for run in runs) if known else {}
    return [known[question] for question in asked if question in known]


def suited(bench: Bench, plan: Plan) -> tuple[Plan, list[Record]]:
    """The plan without methods that cannot run, and a record of each of these that says why, for the tables."""
    reasons = [bench.why_not(method) for method in plan.methods]
    methods = [method for method, reason in zip(plan.methods, reasons, strict=True) if not reason]
    if not methods:
        raise ModelError("; ".join(dict.fromkeys(reasons)))
    shown, records = titles(plan.model, plan.data), {}
    for method, reason in zip(plan.methods, reasons, strict=True):
        if reason:
            about = {"model": plan.model, "data": plan.data, "method": method.method, "left_out": reason}
            entries = {**about, **shown, "method_title": find(method.method).title, "key": content_key(about)}
            records[method.method] = Record.make(entries)
    return plan.model_copy(update={"methods": methods}), list(records.values())


def left_out_lines(records: Iterable[Record]) -> list[str]:
    """One line for each method that was left out, and has no results on the same model and data."""
    records = list(records)
    measured = {(each.model, each.data, each.method) for each in records if each.measured}
    missing = (each for each in records if each.left_out and (each.model, each.data, each.method) not in measured)
    return list(dict.fromkeys(f"{each.method} was left out: {each.left_out}." for each in missing))

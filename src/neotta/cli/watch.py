"""Showing how a sweep goes: a live table in a terminal, lines elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table

from neotta._words import counted, printable
from neotta.evaluate.plan import Run
from neotta.evaluate.records import Record
from neotta.evaluate.sweep import Watcher

EVERY = 2.0
"""Seconds between two lines of the log."""


@contextlib.contextmanager
def watching(console: Console, jobs: int) -> Iterator[Count]:
    """What shows a sweep on this console."""
    if not console.is_terminal:
        yield LogLines(console, jobs)
        return
    table = LiveTable(jobs)
    with Live(table, console=console, refresh_per_second=4):
        yield table


@dataclass
class Row:
    """How far the runs of one method are."""

    total: int = 0
    done: int = 0
    failed: int = 0
    seconds: float = 0.0
    domain: str = ""
    accuracies: list[float] = field(default_factory=list)

    @property
    def mean(self) -> str:
        """The mean accuracy so far."""
        return f"{sum(self.accuracies) / len(self.accuracies):.1f}" if self.accuracies else ""


class Count(Watcher):
    """Counts what is done and estimates what is left; subclasses show it."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self.rows: dict[str, Row] = {}
        self.skipped = self.images = self.seen = 0
        self.measured = self.note = ""
        self._started = time.monotonic()

    def planned(self, runs: Sequence[Run], skipped: int, images: int) -> None:
        """Begin to count."""
        self._started = time.monotonic()
        self.skipped, self.images, self.seen = skipped, images, 0
        for run in runs:
            self.rows.setdefault(run.method, Row()).total += 1

    def outdated(self, line: str) -> None:
        """Remember the line."""
        self.note = line

    def calibrating(self, done: int, total: int) -> None:
        """Remember how far it is."""
        self.measured = f"measuring the unadapted model: {done:,} of at most {total:,} images"

    def encoded(self, count: int) -> None:
        """Count images."""
        self.seen += count

    def recorded(self, record: Record) -> None:
        """Count a run."""
        row = self.rows[record["method"]]
        row.done += 1
        row.failed += record["status"] == "failed"
        row.domain = record["domain"]
        row.seconds += next((record[name] for name in ("seconds", "seconds_without_encoder") if name in record), 0.0)
        top1 = record.get("metrics", {}).get("top1")
        row.accuracies += [] if top1 is None else [top1]

    def measuring(self, method: str, done: int, total: int) -> None:
        """Remember what is measured."""
        self.measured = f"measuring {done + 1} of {total}: {method}"

    @property
    def done(self) -> int:
        """Runs done."""
        return sum(row.done for row in self.rows.values())

    @property
    def total(self) -> int:
        """Runs to do in all."""
        return sum(row.total for row in self.rows.values())

    def left(self) -> float | None:
        """Estimated seconds left; a method that has no run yet counts as the others do."""
        if self.seen < self.images:
            spent = time.monotonic() - self._started
            return spent / self.seen * (self.images - self.seen) if self.seen else None
        if not self.done:
            return None
        usual = sum(row.seconds for row in self.rows.values()) / self.done
        each = [(row.seconds / row.done if row.done else usual) * (row.total - row.done) for row in self.rows.values()]
        return sum(each) / self._jobs


class LiveTable(Count):
    """A table that changes as runs are done, with a bar below."""

    def __rich__(self) -> RenderableType:
        if not self.rows:
            return self.measured or "opening the model and the data"
        table = Table("method", "done", "accuracy %", "last domain", "failed", box=None, header_style="bold")
        for method, row in self.rows.items():
            failed = f"[red]{row.failed}[/red]" if row.failed else ""
            table.add_row(
                escape(printable(method)), f"{row.done}/{row.total}", row.mean, escape(printable(row.domain)), failed
            )
        encoding = self.seen < self.images
        done, total, what = (self.seen, self.images, "images") if encoding else (self.done, self.total, "runs")
        bar = Table.grid(padding=(0, 1))
        bar.add_row(
            "encoding" if encoding else "running",
            ProgressBar(total=total, completed=done, width=40),
            f"{done}/{total} {what}",
            time_left(self.left()),
        )
        return Group(*filter(None, [escape(self.note)]), table, bar)


class LogLines(Count):
    """A line now and then, and for each failure."""

    def __init__(self, console: Console, jobs: int) -> None:
        super().__init__(jobs)
        self._console = console
        self._last = 0.0

    def planned(self, runs: Sequence[Run], skipped: int, images: int) -> None:
        """Print what will be done."""
        super().planned(runs, skipped, images)
        self._print(f"{counted(len(runs), 'run')} to do, {skipped} already recorded; {images} images to encode")

    def outdated(self, line: str) -> None:
        """Print the line."""
        self._print(line)

    def calibrating(self, done: int, total: int) -> None:
        """Print how far it is."""
        super().calibrating(done, total)
        if self._due() or done == total:
            self._print(self.measured)

    def encoded(self, count: int) -> None:
        """Print the number of encoded images."""
        super().encoded(count)
        if self._due() or self.seen == self.images:
            self._print(f"encoded {self.seen} of {self.images} images {time_left(self.left())}")

    def recorded(self, record: Record) -> None:
        """Print the result of a run."""
        super().recorded(record)
        failed = record["status"] == "failed"
        if failed or self._due() or self.done == self.total:
            top1 = record.get("metrics", {}).get("top1")
            result = f"failed: {record['error']}" if failed else "" if top1 is None else f"{top1:.1f} %"
            name = f"{record['method']} on {record['domain']}, seed {record['seed']}"
            left = time_left(self.left()) if self.done < self.total else ""
            self._print(f"{self.done} of {self.total} runs: {name}: {result} {left}")

    def measuring(self, method: str, done: int, total: int) -> None:
        """Print what is measured."""
        super().measuring(method, done, total)
        self._print(self.measured)

    def _due(self) -> bool:
        now = time.monotonic()
        if now - self._last < EVERY:
            return False
        self._last = now
        return True

    def _print(self, text: str) -> None:
        self._console.print(printable(text.rstrip()), markup=False, highlight=False, soft_wrap=True)


def time_left(seconds: float | None) -> str:
    """`3 min left`, in words that change slowly."""
    if seconds is None:
        return ""
    for size, name in ((3600, "h"), (60, "min")):
        if seconds >= 1.5 * size:
            return f"({seconds / size:.0f} {name} left)"
    return f"({seconds:.0f} s left)"

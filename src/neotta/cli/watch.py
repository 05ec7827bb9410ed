"""Showing how runs are carried out: a bar in a terminal, lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console

from neotta._words import counted
from neotta.cli.console import Show, progress_bar, say
from neotta.evaluate.plan import Run
from neotta.evaluate.records import Record
from neotta.evaluate.sweep import Watcher


@contextmanager
def watching(console: Console, every: float = 2.0) -> Iterator[Watcher]:
    """What shows how runs are carried out."""
    with progress_bar(console, every) as show:
        yield _Watching(console, show)


class _Watching(Watcher):
    def __init__(self, console: Console, show: Show) -> None:
        self._console, self._show = console, show
        self._runs = self._images = self._done = self._seen = 0

    def planned(self, runs: Sequence[Run], skipped: int, images: int) -> None:
        self._runs, self._images, self._done, self._seen = len(runs), images, 0, 0
        self.noted(f"{counted(len(runs), 'run')} to do, {skipped} already recorded; {images} images to encode")

    def noted(self, line: str) -> None:
        say(self._console, line)

    def encoded(self, count: int) -> None:
        self._seen += count
        self._show("encoding images", self._seen, self._images)

    def recorded(self, record: Record) -> None:
        self._done += 1
        top1 = record.metrics.get("top1")
        result = "failed" if record.failed else "done" if top1 is None else f"{top1:.1f} %"
        self._show(f"{record.method} on {record.domain}: {result}", self._done, self._runs)

    def measuring(self, method: str, done: int, total: int) -> None:
        self._show(f"measuring {method}", done + 1, total)

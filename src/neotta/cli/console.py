"""What commands print with: names from strangers cannot control the terminal. Progress, too."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console as RichConsole
from rich.console import ConsoleOptions
from rich.segment import Segment

from neotta._words import printable

Show = Callable[[str, int, int], None]
"""Shows the name of a step, how much of it is done, and the total."""


class Console(RichConsole):
    """A console of rich that shows control characters in texts escaped; colours and bars are its own."""

    def render(self, renderable: Any, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render an object: every text passes through here."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(printable(segment.text), segment.style)


def say(console: RichConsole, text: str) -> None:
    """Print a line without markup."""
    console.print(printable(text), markup=False, highlight=False, soft_wrap=True)


def next_step(command: str) -> None:
    """End a command with the next useful one, on standard error: what is printed stays what was asked for."""
    print(f"Next: {printable(command)}", file=sys.stderr)


@contextmanager
def progress_bar(console: RichConsole, every: float = 2.0) -> Iterator[Show]:
    """A moving bar on a terminal, elsewhere a line every so many seconds; both say how long the step still takes."""
    if not console.is_terminal:
        last = began = time.monotonic()
        first, before = 0, sys.maxsize

        def line(name: str, done: int, total: int) -> None:
            nonlocal last, began, first, before
            now = time.monotonic()
            if done <= before:  # another step
                began, first = now, done
            before = done
            if now - last >= every:
                last = now
                seconds = (now - began) / max(1, done - first) * (total - done)
                left = f", about {_time(seconds)} left" if first < done < total else ""
                say(console, f"{done} of {total}: {name}{left}")

        yield line
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    text = TextColumn("{task.description:28}", markup=False)
    with Progress(
        text, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=console, transient=True
    ) as bar:
        task = bar.add_task("opening the model and the data", total=None)
        yield lambda name, done, total: bar.update(task, description=name, completed=done, total=total)


def _time(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 100
        else f"{seconds / 60:.0f} min"
        if seconds < 6000
        else f"{seconds / 3600:.1f} h"
    )

"""A bar on the terminal for each step of a download."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from neotta.data.downloads.fetch import Progress


@contextlib.contextmanager
def bars() -> Iterator[Progress]:
    """Show progress on standard error while the block runs; yields what `download(progress=...)` takes."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=Console(stderr=True)) as shown:
        tasks = {}

        def progress(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = shown.add_task(what, total=total)
            shown.update(tasks[what], completed=done, total=total)

        yield progress

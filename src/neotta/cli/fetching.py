"""Bars for what is downloaded, and fetching data from an address before it is used."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from neotta.data.downloads.fetch import Progress


@contextlib.contextmanager
def download_bars(**settings: Any) -> Iterator[Progress]:
    """Yield what shows a bar for each step of a download, on standard error.

    Args:
        **settings: Further arguments of rich's `Progress`.
    """
    from rich import progress

    from neotta.cli.console import Console

    shown = (
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
    )
    tasks: dict[str, progress.TaskID] = {}
    columns = (progress.TextColumn("{task.description}"), *shown)
    with progress.Progress(*columns, console=Console(stderr=True), **settings) as bars:

        def update(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield update


def fetch_data(spec: str) -> None:
    """Fetch data that lies on a server into the cache, with bars; nothing happens for data on disk.

    Raises:
        DataError: It cannot be fetched.
    """
    from neotta.data.downloads.shards import is_address
    from neotta.data.opening import open_data

    if not any(map(is_address, (spec, spec.partition("=")[2]))):
        return
    with warnings.catch_warnings(), download_bars(transient=True) as progress:
        warnings.simplefilter("ignore")  # warned of where the data is used
        open_data(spec, progress=progress).dataset()

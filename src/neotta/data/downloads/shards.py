"""A published stream over HTTP: its tar files are fetched one after the other into the user's cache, and kept there."""

from __future__ import annotations

import hashlib
import re
import shutil
import urllib.parse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from neotta._locked_file import locked
from neotta.data.downloads.fetch import SPARE, Progress, fetch
from neotta.errors import DataError

_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")


def is_address(text: str) -> bool:
    """Whether this is an http or https address."""
    return text.lower().startswith(("http://", "https://"))


def expanded(name: str) -> list[str]:
    """`serial_{00000..00002}.tar` as three names, in the notation of WebDataset; any other name is itself.

    Raises:
        DataError: The range runs backwards.
    """
    found = _RANGE.search(name)
    if found is None:
        return [name]
    first, last = int(found[1]), int(found[2])
    if last < first:
        raise DataError(f"{name!r} runs backwards: write the smaller number first")
    return [
        f"{name[: found.start()]}{number:0{len(found[1])}d}{name[found.end() :]}" for number in range(first, last + 1)
    ]


def fetch_shards(address: str, names: Sequence[str], *, progress: Progress | None = None) -> list[Path]:
    """Fetch some files of a folder, unless they are in the cache already.

    A download that breaks off goes on where it stopped, also the next time. Several processes may ask at once.

    Args:
        address: Of the folder.
        names: The files, in their order.
        progress: Called as bytes arrive, with the name of the file.

    Raises:
        DataError: The server fails, or there is no room on the disk.
    """
    folder = cache_folder(address)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / name for name in names]
    for number, path in enumerate(paths, start=1):
        if path.is_file():
            continue
        told = None if progress is None else partial(_told, progress, f"{path.name} ({number} of {len(paths)})")
        with locked(folder / ".lock", "ab"):
            if not path.is_file():
                room = partial(_check_room, folder)
                fetch(f"{address}/{urllib.parse.quote(path.name)}", path, room=room, progress=told)
    return paths


def cache_folder(address: str) -> Path:
    """Where the files of a folder on a server are kept: one place for each address."""
    from platformdirs import user_cache_path

    name = urllib.parse.unquote(address.rpartition("/")[2])
    safe = re.sub(r"[^\w+.-]", "_", name)[:100].lstrip(".")
    digest = hashlib.sha256(address.encode()).hexdigest()[:12]
    return user_cache_path("neotta", appauthor=False) / "shards" / f"{safe}-{digest}"


def _check_room(folder: Path, missing: int, whole: int) -> None:
    free = shutil.disk_usage(folder).free - SPARE
    if missing > free:
        raise DataError(
            f"not enough room in {str(folder)!r} for a file of {whole / 1e9:,.1f} GB: {max(free, 0) / 1e9:,.1f} GB can "
            "be used; ask for fewer files, or point XDG_CACHE_HOME to a larger disk"
        )


def _told(progress: Progress, name: str, what: str, done: int, total: int | None) -> None:
    progress(f"{what} {name}", done, total)

"""`download("cifar10-c", "data")`: fetch, check and unpack a dataset of the paper."""

from __future__ import annotations

import os
import shutil
import urllib.parse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from neotta.data.downloads.fetch import Progress, fetch, verify_file
from neotta.data.downloads.published import Archive, find
from neotta.data.downloads.unpack import ArchiveError, install, is_installed
from neotta.errors import DataError, OptionError

GROWTH = 1.1
"""Room an unpacked archive takes, as a multiple of its length: images are compressed already."""


def download(
    name: str,
    dest: str | os.PathLike[str],
    *,
    mirror: str | None = None,
    parts: Sequence[str] | None = None,
    keep: bool = False,
    verify: bool = True,
    progress: Progress | None = None,
) -> Path:
    """Download a dataset, check it, and unpack it into a folder of its name, unless that was done before.

    An archive that lies in `dest` under its published name, put there by hand, is used and kept.

    Args:
        name: `cifar10-c`, `imagenet-c`, `imagenet-r`, `imagenet-sketch` or `cifar-10`.
        dest: The folder to make the dataset's folder in.
        mirror: Address of a folder that holds the same archives under their published names.
        parts: Of `imagenet-c`: some of `noise`, `blur`, `weather`, `digital`, `extra`. By default all.
        keep: Keep the archives after unpacking.
        verify: Compare the archives with their checksums, where these are known.
        progress: Called as bytes are fetched, checked and unpacked.

    Returns:
        The dataset's folder, for `open_data`.

    Raises:
        DataError: No room on the disk, a server that fails, wrong bytes, or an archive that is refused.
        UnknownNameError: No such dataset or part.
        OptionError: Parts of a dataset in one piece, or a mirror that is not an http address.
    """
    published = find(name)
    archives = published.choose(None if parts is None else list(parts))
    if mirror is not None and urllib.parse.urlsplit(mirror).scheme not in ("http", "https"):
        raise OptionError(f"mirror must be an http or https address, not {mirror!r}")
    folder = Path(dest).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / published.name
    for archive in archives:
        if is_installed(target, archive.file):
            continue
        told = None if progress is None else partial(_named, progress, archive.file)
        path, ours = _obtain(archive, folder, mirror, verify, told)
        try:
            install(path, target, archive.file, inside_folder=published.inside_folder, progress=told)
        except ArchiveError as error:
            if not ours:
                raise DataError(f"{error}; remove it to have it downloaded") from error
            bad = folder / f"{archive.file}.bad"
            path.replace(bad)  # out of the way, so that the next attempt fetches it again
            raise DataError(f"{error}; it is kept as {str(bad)!r} and will not be used: start again") from error
        if ours and keep:
            path.replace(folder / archive.file)
        elif ours:
            path.unlink()
    return target


def _obtain(
    archive: Archive, folder: Path, mirror: str | None, check: bool, progress: Progress | None
) -> tuple[Path, bool]:
    """The archive on disk, whole and checked, and whether it is ours to remove."""
    checksum = archive.checksum if check else None
    by_hand = folder / archive.file
    if by_hand.is_file():
        if checksum is not None:
            try:
                verify_file(by_hand, checksum, progress=progress)
            except DataError as error:
                raise DataError(f"{str(by_hand)!r}: {error}; remove it to have it downloaded") from error
        return by_hand, False
    path = folder / f".{archive.file}"
    if path.is_file() and checksum is not None:  # left by an attempt that was interrupted, or did not verify
        try:
            verify_file(path, checksum, progress=progress)
        except DataError:
            path.unlink()
    if not path.is_file():
        url = archive.url if mirror is None else f"{mirror.rstrip('/')}/{urllib.parse.quote(archive.file)}"
        fetch(url, path, checksum=checksum, room=partial(_check_room, folder), progress=progress)
    return path, True


def _check_room(folder: Path, missing: int, whole: int) -> None:
    """Refuse to begin what cannot end: room for the bytes to come and for what will be unpacked."""
    need, free = missing + int(whole * GROWTH), shutil.disk_usage(folder).free
    if need > free:
        raise DataError(
            f"not enough room in {str(folder)!r}: {need / 1e9:,.1f} GB needed "
            f"({missing / 1e9:,.1f} to download, the rest to unpack), {free / 1e9:,.1f} GB free"
        )


def _named(progress: Progress, file: str, what: str, done: int, total: int | None) -> None:
    progress(f"{what} {file}", done, total)

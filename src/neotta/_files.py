"""Atomic writing of files."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from neotta.errors import NeottaError, StorageError

_STALE = 24 * 3600  # seconds after which the temporary file of a killed process is removed


@contextlib.contextmanager
def atomic(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path in the same folder, and rename it to `path` on success.

    If the block raises, or the process dies in it, the old file is unchanged. A symbolic link stays one: what it leads
    to is replaced. Temporary files that killed processes left more than a day ago are removed.

    Raises:
        StorageError: The file cannot be written or flushed to the disk: no space, no permission, a broken disk. Or it
            is a folder or a device, which a file must not replace.
    """
    try:
        target = Path(os.path.realpath(path))
        circle = target.is_symlink()
        if circle or (target.exists() and not target.is_file()):
            kind = "link that leads to itself" if circle else "folder" if target.is_dir() else "device"
            raise StorageError(f"cannot write {os.fspath(path)!r}: this is a {kind}, not a file")
        with _temporary(target) as temporary:
            yield temporary
    except NeottaError:
        raise
    except OSError as error:
        raise StorageError(f"cannot write {os.fspath(path)!r}: {error.strerror or error}") from error


def write_file(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write a whole file, as `atomic` does."""
    with atomic(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def _temporary(target: Path) -> Iterator[Path]:
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_stale(target)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        mode = target.stat().st_mode if target.exists() else 0o666 & ~_umask()
        temporary.chmod(mode & 0o777)
        _sync(temporary)
        temporary.replace(target)
        sync_folder(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _remove_stale(target: Path) -> None:
    ours = re.compile(rf"\.{re.escape(target.name)}\.[a-z0-9_]{{8}}\.tmp")
    with contextlib.suppress(OSError):  # a folder that cannot be listed, or another process was faster
        for path in [entry for entry in target.parent.iterdir() if ours.fullmatch(entry.name)]:
            if time.time() - path.stat().st_mtime > _STALE:
                path.unlink()


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to disk, so that a file made or renamed in it is found after a power failure."""
    if os.name == "nt":  # folders cannot be opened there
        return
    try:
        _sync(folder)
    except OSError as error:
        # Some network and FUSE file systems know no fsync of a folder; they order such changes by themselves.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current

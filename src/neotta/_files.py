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

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_OLD = 24 * 3600  # seconds after which a temporary file is nobody's, where files cannot be locked


@contextlib.contextmanager
def atomic(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path in the same folder, and rename it to `path` on success.

    If the block raises, or the process dies in it, the old file is unchanged. A symbolic link stays one: what it leads
    to is replaced. Temporary files that killed processes have left are removed.

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


@contextlib.contextmanager
def _temporary(target: Path) -> Iterator[Path]:
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_stale(target)
    handle, temporary = _locked_temporary(target)
    try:
        yield temporary
        mode = target.stat().st_mode if target.exists() else 0o666 & ~_umask()
        temporary.chmod(mode & 0o777)
        _sync(temporary)
        temporary.replace(target)
        sync_folder(target.parent)
    finally:
        _release(handle)
        temporary.unlink(missing_ok=True)


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


def _locked_temporary(target: Path) -> tuple[int, Path]:
    """A new file next to the target that is locked as long as its writer lives, and its open handle."""
    while True:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
        with contextlib.suppress(OSError):  # no locks on this file system: then nobody can take it for stale either
            _lock(handle)
        if Path(name).exists():  # else another save took it for stale before it was locked
            return handle, Path(name)
        os.close(handle)


def _remove_stale(target: Path) -> None:
    """Remove the temporary files of this target whose writers are dead: nobody holds their lock."""
    ours = re.compile(rf"\.{re.escape(target.name)}\.[a-z0-9_]{{8}}\.tmp")
    with contextlib.suppress(OSError):  # of a folder that cannot be listed
        for found in [entry for entry in target.parent.iterdir() if ours.fullmatch(entry.name)]:
            _remove_unlocked(found)


def _remove_unlocked(path: Path) -> None:
    with contextlib.suppress(OSError):  # locked by its writer, another user's, or removed by another save
        handle = os.open(path, os.O_RDONLY)
        try:
            _lock(handle)
            if fcntl is not None or time.time() - path.stat().st_mtime > _OLD:
                path.unlink()
        finally:
            _release(handle)


def _lock(handle: int) -> None:
    """Lock a file; if another process has locked it, an error."""
    if fcntl is not None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _release(handle: int) -> None:
    if fcntl is not None:  # explicitly: a child forked meanwhile has the handle, too
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)
    os.close(handle)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current

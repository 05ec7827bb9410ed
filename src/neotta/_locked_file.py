"""Files that several processes append to, and that one of them may replace."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import cast


@contextlib.contextmanager
def locked(path: Path, mode: str, *, shared: bool = False) -> Iterator[FileIO]:
    """Open the file that is now at `path`, and keep other processes and threads from changing it.

    Whoever waits for the lock may get that of a file which has been replaced meanwhile: what is written to that is
    lost. So after the lock is had, the file must still be the one at the path; if not, it is opened again.

    Args:
        path: The file.
        mode: How to open it, as for `open`: binary, unbuffered.
        shared: Let others who only read it do so at the same time.
    """
    while True:
        with path.open(mode, buffering=0) as opened:
            file = cast(FileIO, opened)
            with _flock(file.fileno(), shared):
                if _is_at(file, path):
                    yield file
                    return


def append_whole(file: FileIO, line: bytes) -> None:
    """Append a line to a locked file, on a line of its own; if that fails half-way, take the half back."""
    size = file.seek(0, os.SEEK_END)
    if size and not _ends_with_newline(file):  # a writer died in the middle of a line
        line = b"\n" + line
    try:
        written = 0
        while written < len(line):
            written += file.write(line[written:])
    except OSError:
        file.truncate(size)
        raise


def _ends_with_newline(file: FileIO) -> bool:
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"


def _is_at(file: FileIO, path: Path) -> bool:
    """Whether a path still leads to an open file."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def _flock(descriptor: int, shared: bool) -> Iterator[None]:
    try:
        import fcntl
    except ImportError:  # Windows, where an open file cannot be replaced, and appends of one line are short
        yield
        return
    fcntl.flock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)

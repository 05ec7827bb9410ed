"""Unpacking archives of strangers: nothing leaves the folder, and a dataset appears whole or not at all.

Only files and folders are written, with the permissions any new file gets. A member that is absolute, climbs
with `..`, or is a link or a device makes the whole archive refused.
"""

from __future__ import annotations

import gzip
import json
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, Any, cast

from neotta._files import atomic
from neotta.data.downloads.fetch import SPARE, Progress
from neotta.errors import DataError

MARKER = ".neotta-download.json"
"""In a dataset's folder: which archives have been unpacked into it, and what they brought."""


class ArchiveError(DataError):
    """The archive itself is at fault: it has to be fetched again."""


LARGEST_RATIO = 200  # archives of images hardly shrink; one that grows more is refused
_FREE = 100 * 2**20  # bytes that an archive may take whatever its ratio
_MOST_MEMBERS = 5_000_000  # the largest dataset here has 3.75 million
_LONGEST_READ = 16 * 2**20  # bytes; only a header that is made to fill the memory is longer
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")  # the first bytes of a zip, and of an empty one
_BROKEN = (
    *(tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error),
    *(EOFError, RuntimeError, ValueError, LookupError),
)


def is_installed(target: Path, file: str) -> bool:
    """Whether the archive `file` has been unpacked into `target` before, and all of it is still there."""
    note = _notes(target).get(file, {})
    return bool(note.get("done")) and all((target / name).exists() for name in note["entries"])


def install(archive: Path, target: Path, file: str, *, inside_folder: bool, progress: Progress | None = None) -> None:
    """Unpack an archive beside `target`, then move what it holds into it.

    Args:
        archive: A tar (plain or compressed) or a zip.
        target: The dataset's folder; other parts of the dataset may be in it already.
        file: The archive's published name.
        inside_folder: Whether to leave out the one folder that holds everything in the archive.
        progress: Called as the archive is read.

    Raises:
        ArchiveError: The archive cannot be read, or is refused.
        DataError: There is no room, or `target` holds something else in its place.
    """
    beside = target.with_name(f".{target.name}.{file}.unpacking")
    if beside.exists():  # an earlier attempt was interrupted
        shutil.rmtree(beside)
    try:
        content = beside / "content"
        content.mkdir(parents=True)
        unpack(archive, content, progress=progress)
        inner = list(content.iterdir())
        if not inner:
            raise ArchiveError(f"archive {str(archive)!r} is empty")
        if inside_folder and len(inner) == 1 and inner[0].is_dir():
            content = inner[0]
        _move(content, target, file)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _move(content: Path, target: Path, file: str) -> None:
    """Move each entry of `content` into `target`, in one step if there is no `target` yet."""
    entries = sorted(path.name for path in content.iterdir())
    if not target.exists():
        _write_notes(content, {file: {"entries": entries, "done": True}})
        content.rename(target)
        return
    notes = _notes(target)
    ours = notes.get(file, {}).get("entries", [])  # of an attempt that was interrupted while moving
    strange = [name for name in entries if (target / name).exists() and name not in ours]
    if strange:
        raise DataError(
            f"{str(target)!r} holds {strange[0]!r} already, which this command did not put there: "
            "move it away, or name another folder"
        )
    _write_notes(target, {**notes, file: {"entries": entries, "done": False}})
    for name in entries:
        if (target / name).is_dir():
            shutil.rmtree(target / name)
        (content / name).replace(target / name)
    _write_notes(target, {**notes, file: {"entries": entries, "done": True}})


def _notes(target: Path) -> dict[str, Any]:
    try:
        notes = json.loads((target / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return notes if isinstance(notes, dict) else {}


def _write_notes(target: Path, notes: dict[str, Any]) -> None:
    with atomic(target / MARKER) as temporary:
        temporary.write_text(json.dumps(notes, indent=1), encoding="utf-8")


def unpack(archive: Path, folder: Path, *, progress: Progress | None = None) -> None:
    """Unpack a tar or zip into `folder`, which is empty.

    Raises:
        ArchiveError: The archive cannot be read, or a member is refused.
        DataError: There is no room, the folder cannot be written to, or Python is too old to do it safely.
    """
    if not hasattr(tarfile, "data_filter"):
        raise DataError("unpacking archives safely needs Python 3.10.12, 3.11.4 or newer: update Python")
    total = archive.stat().st_size
    try:
        with archive.open("rb") as raw:
            members = _unzip if raw.read(4) in _ZIP else _untar
            raw.seek(0)
            allowed = max(total * LARGEST_RATIO, _FREE)
            unpacked = 0
            for number, size in enumerate(members(raw, folder, allowed)):
                unpacked += size
                if unpacked > allowed:
                    raise ArchiveError(
                        f"archive {str(archive)!r} is refused: {total:,} bytes would become more than {allowed:,}"
                    )
                if number >= _MOST_MEMBERS:
                    raise ArchiveError(f"archive {str(archive)!r} is refused: it holds more than {number:,} files")
                if progress is not None:
                    progress("unpacking", raw.tell(), total)
    except DataError:
        raise
    except _BROKEN as error:
        raise ArchiveError(f"archive {str(archive)!r} cannot be read: {error}") from error
    except (FileExistsError, IsADirectoryError, NotADirectoryError) as error:  # two of its members are in conflict
        raise ArchiveError(f"archive {str(archive)!r} cannot be unpacked: {error}") from error
    except OSError as error:
        raise DataError(f"archive {str(archive)!r} cannot be unpacked: {error}") from error


class _Bounded:
    """What a tar is read from: neither headers nor padding, which no file is made of, can grow without end.

    Args:
        file: The bytes of a tar, not compressed.
        most: How many there may be.
    """

    def __init__(self, file: IO[bytes], most: int) -> None:
        self._file, self._most = file, most
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int) -> bytes:
        """Read some bytes."""
        if size > _LONGEST_READ:
            raise ArchiveError(f"archive is refused: it has a header of {size:,} bytes")
        if self._file.tell() > self._most:
            raise ArchiveError(f"archive is refused: unpacked it is longer than {self._most:,} bytes")
        return self._file.read(size)


def _untar(raw: IO[bytes], folder: Path, allowed: int) -> Iterator[int]:
    """Unpack member by member; report the size of each before it is written."""
    packed = raw.read(2) == b"\x1f\x8b"
    raw.seek(0)
    plain = cast("IO[bytes]", gzip.GzipFile(fileobj=raw)) if packed else raw
    bounded = cast("IO[bytes]", _Bounded(plain, 2 * allowed))  # headers may take as much as the files
    with tarfile.open(fileobj=bounded, mode="r:") as tar:
        while (member := tar.next()) is not None:
            tar.members.clear()  # type: ignore[attr-defined]  # a million of them would fill the memory
            _check(member.name, member.size, member.isfile() or member.isdir(), folder)
            yield member.size
            tar.extract(member, folder, filter=_as_new)
        _check_end(tar)


def _as_new(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo:
    """Python's own filter for data, and the permissions and time of any new file."""
    return tarfile.data_filter(member, folder).replace(mode=None, mtime=None, deep=False)  # type: ignore[arg-type]


def _unzip(raw: IO[bytes], folder: Path, allowed: int) -> Iterator[int]:
    """Unpack member by member; report the size of each before it is written."""
    with zipfile.ZipFile(raw) as archive:
        _check_room("all files", sum(member.file_size for member in archive.infolist()), folder)
        for member in archive.infolist():
            kind = stat.S_IFMT(member.external_attr >> 16)
            _check(member.filename, member.file_size, kind in (0, stat.S_IFREG, stat.S_IFDIR), folder)
            yield member.file_size  # Python writes no more than this
            archive.extract(member, folder)


def _check(name: str, size: int, plain: bool, folder: Path) -> None:
    """Refuse an archive with a member that Python would only tame."""
    if not plain:
        raise ArchiveError(f"archive is refused: its member {name!r} is a link or a device")
    path = PurePosixPath(name)
    drive = PureWindowsPath(str(path)).drive
    if path.is_absolute() or ".." in path.parts or drive or "\\" in name or "\0" in name:
        raise ArchiveError(f"archive is refused: its member {name!r} would be written outside the folder")
    _check_room(repr(name), size, folder)


def _check_room(what: str, size: int, folder: Path) -> None:
    """Refuse what would fill the disk, before anything of it is written."""
    free = shutil.disk_usage(folder).free - SPARE
    if size > free:
        raise DataError(f"no room on the disk for {what} of {size:,} bytes: {max(free, 0):,} bytes can be used")


def _check_end(tar: tarfile.TarFile) -> None:
    """Tell the end of a tar, which is zeros, from a header it cannot read and from a missing rest."""
    file = cast("IO[bytes]", tar.fileobj)
    file.seek(tar.offset)
    block = file.read(tarfile.BLOCKSIZE)
    if len(block) < tarfile.BLOCKSIZE:
        raise tarfile.ReadError(f"damaged or truncated: it stops at byte {tar.offset:,} without an end mark")
    while block:
        if any(block):
            raise tarfile.ReadError(f"damaged or truncated: no header and no end mark at byte {tar.offset:,}")
        block = file.read(1 << 20)

"""Which slot each stream on disk is in: a file of JSON lines, one for each change."""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from neotta._files import atomic
from neotta.errors import StateFileError, StateMismatchError
from neotta.neo.stream_ids import StreamId
from neotta.neo.stream_slots import FORMAT

_SLACK = 10_000  # so many entries that no longer count are let be
_AT_ONCE = 10_000  # entries of a line, when all are written


class Index:
    """The slots of streams by id, kept in memory and, change by change, in a file.

    Each line has a checksum. A line that was cut short, since the process died while it wrote it, never happened.

    Args:
        path: The file.
        owner: What the streams belong to; a file of another owner is refused.

    Raises:
        StateFileError: The file is damaged.
        StateMismatchError: It belongs to another model or method.
    """

    def __init__(self, path: Path, owner: str) -> None:
        self.slots: dict[StreamId, int] = {}
        self._path = path
        self._head = {"format": FORMAT, "owner": owner}
        self._entries = 0
        if path.exists():
            self._read()
        else:
            self.replace({})

    def put(self, ids: Sequence[StreamId], slots: Sequence[int]) -> None:
        """Note where streams are; when this returns, it is on the disk."""
        self._append({"ids": list(ids), "slots": list(slots)})

    def drop(self, ids: Sequence[StreamId]) -> None:
        """Forget streams."""
        self._append({"gone": list(ids)})

    def replace(self, slots: Mapping[StreamId, int]) -> None:
        """Forget all streams and note these, in one step."""
        with atomic(self._path) as temporary, temporary.open("wb") as file:
            file.write(_line(self._head))
            file.writelines(map(_line, _pieces(slots)))
        self.slots, self._entries = dict(slots), len(slots)

    def _append(self, change: dict[str, Any]) -> None:
        with self._path.open("r+b", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            line = _line(change)
            try:
                while line:
                    line = line[file.write(line) :]
                os.fsync(file.fileno())
            except OSError:
                file.truncate(size)
                raise
        self._take(change)
        if self._entries > 2 * len(self.slots) + _SLACK:
            with contextlib.suppress(OSError):  # a file that is longer than it need be does no harm
                self.replace(self.slots)

    def _read(self) -> None:
        content = self._path.read_bytes()
        whole = content.rfind(b"\n") + 1
        lines = content[:whole].splitlines()
        head = _parsed(lines[0]) if lines else None
        if head is None or head.get("format") != FORMAT:
            raise StateFileError(f"the file of streams {str(self._path)!r} is damaged, or no such file at all")
        if head != self._head:
            raise StateMismatchError(f"{str(self._path)!r} holds the streams of another model or method")
        for number, line in enumerate(lines[1:], start=2):
            change = _parsed(line)
            if change is None:
                raise StateFileError(
                    f"line {number} of {str(self._path)!r} is damaged: take the folder from a backup, or delete it to "
                    "begin anew"
                )
            self._take(change)
        if whole < len(content):
            os.truncate(self._path, whole)

    def _take(self, change: dict[str, Any]) -> None:
        ids, gone = change.get("ids", []), change.get("gone", [])
        self.slots.update(zip(ids, change.get("slots", []), strict=True))
        for item in gone:
            self.slots.pop(item, None)
        self._entries += len(ids) + len(gone)


def _pieces(slots: Mapping[StreamId, int]) -> Iterator[dict[str, Any]]:
    ids = list(slots)
    for start in range(0, len(ids), _AT_ONCE):
        some = ids[start : start + _AT_ONCE]
        yield {"ids": some, "slots": [slots[item] for item in some]}


def _line(change: Mapping[str, Any]) -> bytes:
    text = json.dumps(change)
    return f'{text[:-1]}, "crc": {zlib.crc32(text.encode())}}}\n'.encode()


def _parsed(line: bytes) -> dict[str, Any] | None:
    """What a line says, or None if it is damaged."""
    try:
        change = json.loads(line)
        crc = change.pop("crc")
    except (ValueError, KeyError, AttributeError, TypeError):
        return None
    return change if crc == zlib.crc32(json.dumps(change).encode()) else None

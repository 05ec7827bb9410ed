"""Numbered slots on disk, each with room for one stream, in safetensors files that are written in place."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np

from neotta._files import atomic
from neotta.errors import StateFileError
from neotta.neo.statefile import Array

FORMAT = "neotta-streams-1"
_FIRST = 1024  # slots of the first file; each next one has twice as many


class Slots:
    """Records of one kind, (d,) each, by the number of their slot.

    The files are `0.safetensors`, `1.safetensors` and so on, with one row of bytes for each slot. They are sparse: a
    slot that was never written takes no room on the disk.

    Args:
        folder: Where the files are.
        features: The length d of an embedding.

    Raises:
        StateFileError: A file is damaged, or of other features.
    """

    def __init__(self, folder: Path, features: int) -> None:
        numbers = [("count", "<i8"), ("batches", "<i8"), ("rejected", "<i8"), ("scatter", "<f8")]
        self.record = np.dtype([*numbers, ("mean", "<f4", (features,)), ("crc", "<u4")])
        self._folder = folder
        self._files: list[tuple[FileIO, int]] = []
        with ExitStack() as self._open:  # closes them again if one is damaged
            while (folder / f"{len(self._files)}.safetensors").exists():
                self._add()
            self._open = self._open.pop_all()

    def read(self, slots: Sequence[int]) -> Array:
        """The records in these slots, (n,)."""
        return self._read(slots, self.record)

    def counts(self, slots: Sequence[int]) -> list[int]:
        """The first number of the records in these slots alone."""
        counts: list[int] = self._read(slots, np.dtype("<i8")).tolist()
        return counts

    def write(self, slots: Sequence[int], records: Array) -> None:
        """Write records, (n,); when this returns they are on the disk."""
        touched = set()
        for (file, offset), record in zip(self._places(slots), records, strict=True):
            file.seek(offset)
            _write_whole(file, record.tobytes())
            touched.add(file)
        for file in touched:
            os.fsync(file.fileno())

    def close(self) -> None:
        """Close the files."""
        self._open.close()

    def _read(self, slots: Sequence[int], kind: np.dtype[Any]) -> Array:
        found = np.zeros(len(slots), kind)
        rows = found.view(np.uint8).reshape(len(slots), kind.itemsize)
        for (file, offset), row in zip(self._places(slots), rows, strict=True):
            file.seek(offset)
            file.readinto(row.data)  # of a file that was cut, nothing: the checksum tells
        return found

    def _places(self, slots: Sequence[int]) -> Iterator[tuple[FileIO, int]]:
        """File and offset of each slot."""
        for slot in slots:
            number = (slot // _FIRST + 1).bit_length() - 1
            while number >= len(self._files):
                self._add()
            file, start = self._files[number]
            yield file, start + (slot - _FIRST * (2**number - 1)) * self.record.itemsize

    def _add(self) -> None:
        """Open the next file; if it is not there, make it."""
        number = len(self._files)
        path, rows = self._folder / f"{number}.safetensors", _FIRST * 2**number
        header, size = self._header(rows), rows * self.record.itemsize
        if not path.exists():
            with atomic(path) as temporary, temporary.open("r+b") as new:
                new.write(header)
                new.truncate(len(header) + size)
        file = self._open.enter_context(path.open("r+b", buffering=0))
        if path.stat().st_size != len(header) + size or file.read(len(header)) != header:
            raise StateFileError(f"{str(path)!r} is damaged: it does not begin as neotta wrote it, or was cut")
        self._files.append((file, len(header)))

    def _header(self, rows: int) -> bytes:
        """The first bytes of a safetensors file with one tensor: their number, and JSON."""
        size = self.record.itemsize
        about = {"format": FORMAT, "record": [[name, str(self.record[name].base)] for name in self.record.names or ()]}
        records = {"dtype": "U8", "shape": [rows, size], "data_offsets": [0, rows * size]}
        header = json.dumps({"__metadata__": {"neotta": json.dumps(about)}, "records": records}).encode()
        header += b" " * (-len(header) % 8)
        return len(header).to_bytes(8, "little") + header


def _write_whole(file: FileIO, content: bytes) -> None:
    written = 0
    while written < len(content):
        written += file.write(content[written:])

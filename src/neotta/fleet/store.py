"""Streams on disk: where the least recently used ones wait until they are needed again.

SQLite keeps them, as it writes all of a batch or nothing of it, whenever the process dies, and finds one stream among
millions. Every stream has a checksum of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import struct
import weakref
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from neotta.errors import StateFileError, StateMismatchError
from neotta.fleet.ids import StreamId

COUNTS = ("count", "batches", "rejected")
_COLUMNS = "id TEXT PRIMARY KEY, count INTEGER, batches INTEGER, rejected INTEGER, scatter REAL, mean BLOB, crc INTEGER"
_AT_ONCE = 500  # how many ids one question names; SQLite allows 999


class StreamStore:
    """A file of streams; `None` where a method takes ids stands for all of them.

    The file belongs to one process at a time, and to one model.

    Args:
        path: The file; its folder is made if it is not there.
        features: The length d of an embedding.
        owner: What the streams belong to; a file of another owner is refused.

    Raises:
        StateFileError: The file is damaged, or another process is using it.
        StateMismatchError: It belongs to another model or method.
    """

    def __init__(self, path: str | os.PathLike[str], features: int, owner: str) -> None:
        self.path = Path(path)
        self.features = features
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._explained():
            # The table's lock lets one thread in at a time, which is all that SQLite asks for.
            self._file = sqlite3.connect(self.path, timeout=1.0, check_same_thread=False)
            weakref.finalize(self, self._file.close)
            with self._file:
                self._file.execute("PRAGMA locking_mode = EXCLUSIVE")
                self._file.execute("PRAGMA journal_mode = WAL")
                self._file.execute("CREATE TABLE IF NOT EXISTS about (owner TEXT)")
                self._file.execute(f"CREATE TABLE IF NOT EXISTS streams ({_COLUMNS}) WITHOUT ROWID")
                known = self._file.execute("SELECT owner FROM about").fetchone()
                if known is None:
                    self._file.execute("INSERT INTO about VALUES (?)", (owner,))
        if known is not None and known[0] != owner:
            self._file.close()
            raise StateMismatchError(f"{str(self.path)!r} holds the streams of another model or method")

    def read(self, ids: Sequence[StreamId] | None = None) -> tuple[list[StreamId], dict[str, Tensor]]:
        """Read those of the streams that are there: their ids, and their state, (n, ...) each."""
        with self._explained():
            rows = list(self._select(ids))
        tensors: dict[str, Tensor] = {
            name: torch.tensor([row[column] for row in rows], dtype=torch.int64)
            for column, name in enumerate(COUNTS, start=1)
        }
        tensors["scatter"] = torch.tensor([row[4] for row in rows], dtype=torch.float64)
        joined = np.frombuffer(b"".join(self._blob(row) for row in rows), dtype="<f4").astype(np.float32)
        tensors["mean"] = torch.from_numpy(joined.reshape(len(rows), self.features))
        return [json.loads(row[0]) for row in rows], tensors

    def _select(self, ids: Sequence[StreamId] | None) -> Iterator[tuple[str, int, int, int, float, bytes, int]]:
        if ids is None:
            yield from self._file.execute("SELECT * FROM streams")
            return
        keys = [json.dumps(item) for item in ids]
        for start in range(0, len(keys), _AT_ONCE):
            some = keys[start : start + _AT_ONCE]
            yield from self._file.execute(f"SELECT * FROM streams WHERE id IN ({','.join('?' * len(some))})", some)

    def _blob(self, row: tuple[str, int, int, int, float, bytes, int]) -> bytes:
        if len(row[5]) != 4 * self.features or _crc(row[:6]) != row[6]:
            raise StateFileError(
                f"stream {row[0]} in {str(self.path)!r} is damaged: it does not match its checksum "
                f"(forget it with neotta.reset(model, stream={row[0]}))"
            )
        return row[5]

    def write(self, ids: Sequence[StreamId], tensors: Mapping[str, Tensor], *, replace: bool = False) -> None:
        """Write streams, all of them or, with an error, none; with `replace`, in the place of all that are there."""
        means = tensors["mean"].cpu().numpy().astype("<f4")
        columns = [tensors[name].tolist() for name in (*COUNTS, "scatter")]
        rows = [
            (json.dumps(item), *numbers, mean.tobytes())
            for item, mean, *numbers in zip(ids, means, *columns, strict=True)
        ]
        with self._explained(), self._file:
            if replace:
                self._file.execute("DELETE FROM streams")
            self._file.executemany(
                "INSERT OR REPLACE INTO streams VALUES (?, ?, ?, ?, ?, ?, ?)", ((*row, _crc(row)) for row in rows)
            )

    def delete(self, ids: Sequence[StreamId] | None = None) -> None:
        """Forget streams."""
        with self._explained(), self._file:
            if ids is None:
                self._file.execute("DELETE FROM streams")
            else:
                self._file.executemany("DELETE FROM streams WHERE id = ?", [(json.dumps(item),) for item in ids])

    def counts(self) -> dict[StreamId, int]:
        """How many samples stand behind each stream in the file."""
        with self._explained():
            return {json.loads(key): count for key, count in self._file.execute("SELECT id, count FROM streams")}

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            locked = "locked" in str(error)
            what = "is in use by another model or process" if locked else "is damaged, or cannot be read or written"
            raise StateFileError(f"the file of streams {str(self.path)!r} {what}: {error}") from error


def _crc(row: Sequence[object]) -> int:
    """A checksum of one stream: id, counts, scatter, mean."""
    key, count, batches, rejected, scatter, mean = row
    packed = struct.pack("<qqqd", count, batches, rejected, scatter)
    return zlib.crc32(mean, zlib.crc32(packed, zlib.crc32(str(key).encode())))  # type: ignore[arg-type]

"""Streams in an SQLite database."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import weakref
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from neotta.errors import StateFileError, StateMismatchError, StorageError
from neotta.neo.state_checks import SUBTRACTED, largest_subtracted
from neotta.neo.statefile import Array
from neotta.neo.stream_ids import StreamId
from neotta.neo.stream_store import Arrays

FORMAT = "neotta-streams-2"
FILE = "streams.sqlite"
_AT_ONCE = 500  # ids per query


class SqliteStore:
    """Streams in an SQLite database (write-ahead log, one transaction per change).

    The database belongs to one model. One process writes it at a time; others may read it; a forked child is refused.
    A change is on disk when the call returns, and an interrupted one is rolled back. Every stream has a checksum.

    Args:
        folder: Folder of the database; created if it does not exist.
        record: The fields of a stream as a NumPy record type; one of them is `count`.
        owner: Identifies the model; the database of another owner is refused.

    Raises:
        StateFileError: The database is damaged, or in use by another model or process.
        StateMismatchError: It belongs to another model or method.
        StorageError: It cannot be created or written.
    """

    def __init__(self, folder: str | os.PathLike[str], record: np.dtype[Any], owner: str) -> None:
        self.folder = Path(folder)
        self.record = record
        self._process = os.getpid()
        with self._translated(), contextlib.ExitStack() as opened:
            self.folder.mkdir(parents=True, exist_ok=True)
            opened.enter_context(_locked(self.folder))
            self._database = sqlite3.connect(self.folder / FILE, isolation_level=None, check_same_thread=False)
            opened.callback(_close, self._database, self._process)
            self._prepare(owner)
            self._close = weakref.finalize(self, opened.pop_all().close)

    def close(self) -> None:
        """Close the database, so that another model can open the folder; the store cannot be used any more."""
        self._close()

    def _prepare(self, owner: str) -> None:
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = FULL")  # a commit is on disk when it returns
        with self._transaction() as run:
            run("CREATE TABLE IF NOT EXISTS about (key TEXT PRIMARY KEY, value TEXT NOT NULL)")
            run(
                "CREATE TABLE IF NOT EXISTS streams (id TEXT PRIMARY KEY, count INTEGER NOT NULL, fields BLOB NOT NULL)"
            )
            mine = {"format": FORMAT, "owner": owner, "record": str(self.record.descr)}
            found = dict(run("SELECT key, value FROM about")) or mine
            if found.get("format") != FORMAT:
                raise StateFileError(f"{str(self.folder / FILE)!r} is not a database of streams (format {FORMAT})")
            if found != mine:
                raise StateMismatchError(f"{str(self.folder)!r} holds the streams of another model or method")
            self._database.executemany("INSERT OR REPLACE INTO about VALUES (?, ?)", mine.items())

    def read(self, ids: Sequence[StreamId] | None = None) -> tuple[list[StreamId], dict[str, Array]]:
        """Read the streams that exist: their ids, and their fields, (n, ...) each."""
        with self._translated():
            rows = self._all() if ids is None else self._some([json.dumps(item) for item in ids])
        found = [self._id(key) for key, _ in rows]
        for item, (key, content) in zip(found, rows, strict=True):
            if len(content) != self.record.itemsize + 4 or _checksum(key, content[:-4]) != content[-4:]:
                raise StateFileError(
                    f"stream {item!r} in {str(self.folder)!r} is damaged: it does not match its checksum "
                    f"(delete it with neotta.reset(model, stream={item!r}))"
                )
        records = np.frombuffer(b"".join(content[:-4] for _, content in rows), self.record)
        self._check(found, records)
        return found, {name: records[name] for name in self.record.names or ()}

    def _id(self, key: str) -> StreamId:
        with contextlib.suppress(ValueError, TypeError, RecursionError):
            item: StreamId = json.loads(key)
            if type(item) in (int, str):
                return item
        raise StateFileError(f"{key!r} in {str(self.folder)!r} is not the id of a stream: the database is damaged")

    def _check(self, ids: Sequence[StreamId], records: Array) -> None:
        """Refuse streams with NaN, Inf, negative counts or means that are too large, whatever their checksum says."""
        largest = largest_subtracted(np.dtype(np.float32))
        for name in self.record.names or ():
            values = records[name]
            good = np.isfinite(values) if values.dtype.kind == "f" else values >= 0
            if name in SUBTRACTED:
                good &= abs(values) <= largest
            good = good.all(tuple(range(1, values.ndim)))
            if not good.all():
                item = ids[int(np.argmin(good))]
                raise StateFileError(
                    f"stream {item!r} in {str(self.folder)!r} holds a {name} that makes no sense "
                    f"(forget it with neotta.reset(model, stream={item!r}))"
                )

    def _all(self) -> list[tuple[str, bytes]]:
        return self._database.execute("SELECT id, fields FROM streams ORDER BY rowid").fetchall()

    def _some(self, keys: Sequence[str]) -> list[tuple[str, bytes]]:
        found: dict[str, bytes] = {}
        for start in range(0, len(keys), _AT_ONCE):
            some = keys[start : start + _AT_ONCE]
            marks = ", ".join("?" * len(some))
            found.update(self._database.execute(f"SELECT id, fields FROM streams WHERE id IN ({marks})", some))
        return [(key, found[key]) for key in keys if key in found]

    def write(self, ids: Sequence[StreamId], fields: Arrays, *, replace: bool = False) -> None:
        """Write streams, all or none; with `replace`, delete all others."""
        records = np.zeros(len(ids), self.record)
        for name in self.record.names or ():
            records[name] = fields[name]
        with self._translated(), self._transaction() as run:
            if replace:
                run("DELETE FROM streams")
            self._database.executemany("INSERT OR REPLACE INTO streams VALUES (?, ?, ?)", _rows(ids, records))

    def delete(self, ids: Sequence[StreamId] | None = None) -> None:
        """Delete streams."""
        with self._translated(), self._transaction() as run:
            if ids is None:
                run("DELETE FROM streams")
            else:
                keys = [(json.dumps(item),) for item in ids]
                self._database.executemany("DELETE FROM streams WHERE id = ?", keys)

    def counts(self) -> dict[StreamId, int]:
        """Number of samples of each stream."""
        with self._translated():
            rows = self._database.execute("SELECT id, count FROM streams").fetchall()
        return {self._id(key): count for key, count in rows}

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Any]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield self._database.execute
            self._database.execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """Convert errors of SQLite and the system to neotta's own; refuse a forked child."""
        if os.getpid() != self._process:
            raise StateFileError(
                f"the streams in {str(self.folder)!r} were opened by the process that forked this one: adapt the model "
                "again in this process, with another folder"
            )
        try:
            yield
        except (sqlite3.OperationalError, OSError) as error:
            raise StorageError(
                f"the streams in {str(self.folder)!r} cannot be read or written: {error} (nothing was changed)"
            ) from error
        except sqlite3.DatabaseError as error:
            raise StateFileError(
                f"the streams in {str(self.folder)!r} are damaged ({error}): restore the folder from a backup, or "
                "delete it to start again"
            ) from error


def _rows(ids: Sequence[StreamId], records: Array) -> Iterator[tuple[str, int, bytes]]:
    for item, record in zip(ids, records, strict=True):
        key, content = json.dumps(item), record.tobytes()
        yield key, int(record["count"]), content + _checksum(key, content)


def _checksum(key: str, content: bytes) -> bytes:
    return zlib.crc32(content, zlib.crc32(key.encode())).to_bytes(4, "little")


def _close(database: sqlite3.Connection, process: int) -> None:
    if os.getpid() == process:  # a forked child must not touch the files
        database.close()


_OPEN: set[Path] = set()  # folders in use by this process; POSIX locks do not exclude the same process


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock a folder against other processes, and against other models in this one.

    The kernel releases the lock when this process ends, even if it is killed. A fork does not inherit it.
    """
    place = folder.resolve()
    busy = StateFileError(
        f"the folder of streams {str(folder)!r} is in use by another model or process: use another folder"
    )
    if place in _OPEN:
        raise busy
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            import fcntl

            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:  # Windows: SQLite's own locks protect the file
            pass
        except OSError:
            raise busy from None
        _OPEN.add(place)
        yield
    finally:
        _OPEN.discard(place)
        os.close(handle)

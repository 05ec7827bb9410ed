"""Streams on disk: states that are not in memory, in an SQLite database."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from neotta.errors import StateFileError, StateMismatchError, StorageError
from neotta.neo.codec import sealed, unsealed
from neotta.neo.statefile import Array
from neotta.neo.stream_ids import StreamId

FORMAT = "neotta-streams-4"
FILE = "streams.sqlite"


class Spill:
    """States in an SQLite database (write-ahead log, one transaction per change).

    The database belongs to one model. One process opens it at a time; a forked child is rejected. A change is on disk
    when the call returns, and an interrupted one is rolled back. Every stream has a checksum.

    Args:
        folder: Folder of the database; created if it does not exist.
        width: Length of a state.
        owner: Identifies the model and the rule; the database of another owner is rejected.

    Raises:
        StateFileError: The database is damaged, or in use by another model or process.
        StateMismatchError: It belongs to another model or method.
        StorageError: It cannot be created or written.
    """

    def __init__(self, folder: str | os.PathLike[str], width: int, owner: str) -> None:
        self.folder, self.width = Path(folder), width
        self._process = os.getpid()
        with self._translated():
            self._database = exclusive(self.folder, FILE)
            try:
                self._prepare(owner)
            except BaseException:
                self._database.close()
                raise
        self._close = weakref.finalize(self, _close, self._database, self._process)

    def close(self) -> None:
        """Close the database, so that another model can open the folder."""
        self._close()

    def _prepare(self, owner: str) -> None:
        run = self._database.execute
        with transaction(self._database):
            run("CREATE TABLE IF NOT EXISTS about (key TEXT PRIMARY KEY, value TEXT NOT NULL)")
            run("CREATE TABLE IF NOT EXISTS streams (id TEXT PRIMARY KEY, count REAL NOT NULL, state BLOB NOT NULL)")
            mine = {"format": FORMAT, "owner": owner, "width": str(self.width)}
            found = dict(run("SELECT key, value FROM about")) or mine
            if found.get("format") != FORMAT:
                raise StateFileError(
                    f"{str(self.folder / FILE)!r} holds no streams of this version of neotta (format {FORMAT}): use "
                    "another folder"
                )
            if found != mine:
                raise StateMismatchError(f"{str(self.folder)!r} holds the streams of another model or method")
            self._database.executemany("INSERT OR REPLACE INTO about VALUES (?, ?)", mine.items())

    def read(self, ids: Sequence[StreamId] | None = None) -> tuple[list[StreamId], Tensor]:
        """The ids of the streams that exist, all or among `ids`, and their states, (n, width) float64.

        Raises:
            StateFileError: A stream is damaged.
        """
        with self._translated():
            run = self._database.execute
            if ids is None:
                rows = run("SELECT id, state FROM streams ORDER BY rowid").fetchall()
            else:
                keys = [json.dumps(item) for item in ids]
                rows = [row for key in keys for row in run("SELECT id, state FROM streams WHERE id = ?", [key])]
        found = [self._id(key) for key, _ in rows]
        states: list[Array | None] = []
        for item, (key, content) in zip(found, rows, strict=True):
            states.append(unsealed(key, content, self.width))
            if states[-1] is None:
                raise StateFileError(
                    f"stream {item!r} in {str(self.folder)!r} is damaged: it does not match its checksum "
                    f"(forget it with neotta.reset(model, stream={item!r}))"
                )
        return found, torch.from_numpy(np.array(states, np.float64).reshape(-1, self.width))

    def _id(self, key: str) -> StreamId:
        with contextlib.suppress(ValueError, TypeError, RecursionError):
            item: StreamId = json.loads(key)
            if type(item) in (int, str):
                return item
        raise StateFileError(f"{key!r} in {str(self.folder)!r} is not the id of a stream: the database is damaged")

    def write(self, ids: Sequence[StreamId], states: Tensor, *, replace: bool = False) -> None:
        """Write streams, all or none; with `replace`, delete all others."""
        rows = []
        for item, state in zip(ids, states.cpu().double(), strict=True):
            key = json.dumps(item)
            rows.append((key, float(state[0]), sealed(key, state.numpy())))
        with self._translated(), transaction(self._database):
            if replace:
                self._database.execute("DELETE FROM streams")
            self._database.executemany("INSERT OR REPLACE INTO streams VALUES (?, ?, ?)", rows)

    def delete(self, ids: Sequence[StreamId] | None = None) -> None:
        """Delete streams, or all."""
        with self._translated(), transaction(self._database):
            if ids is None:
                self._database.execute("DELETE FROM streams")
            else:
                self._database.executemany("DELETE FROM streams WHERE id = ?", [(json.dumps(item),) for item in ids])

    def counts(self) -> dict[StreamId, int]:
        """Number of samples of each stream."""
        with self._translated():
            rows = self._database.execute("SELECT id, count FROM streams").fetchall()
        return {self._id(key): int(count) for key, count in rows}

    def check_process(self) -> None:
        """Reject a forked child."""
        if os.getpid() != self._process:
            raise StateFileError(
                f"the streams in {str(self.folder)!r} were opened by the process that forked this one: adapt the model "
                "again in this process, with another folder"
            )

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """Convert errors of SQLite and the system to neotta's own; reject a forked child."""
        self.check_process()
        with translated(f"the streams in {str(self.folder)!r}"):
            yield


@contextlib.contextmanager
def translated(what: str) -> Iterator[None]:
    """Convert errors of SQLite and the system to neotta's own."""
    try:
        yield
    except (sqlite3.OperationalError, OSError) as error:
        raise StorageError(f"{what} cannot be read or written: {error} (nothing was changed)") from error
    except sqlite3.DatabaseError as error:
        raise StateFileError(
            f"{what} are damaged ({error}): restore the folder from a backup, or delete it to start again"
        ) from error


def exclusive(folder: Path | None, file: str) -> sqlite3.Connection:
    """Open a database, in memory without a folder, that no other process opens until it is closed."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    where = ":memory:" if folder is None else folder / file
    database = sqlite3.connect(where, isolation_level=None, check_same_thread=False, timeout=0)
    try:
        database.execute("PRAGMA locking_mode = EXCLUSIVE")  # until it is closed, or the process ends
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")  # a commit is on disk when it returns
        database.execute("BEGIN EXCLUSIVE")
        database.execute("COMMIT")
    except sqlite3.DatabaseError as error:
        database.close()
        if "locked" in str(error):
            raise StateFileError(
                f"the folder {str(folder)!r} is in use by another model or process: use another folder"
            ) from None
        raise
    return database


@contextlib.contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """Everything inside it, or nothing."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise


def _close(database: sqlite3.Connection, process: int) -> None:
    if os.getpid() == process:  # a forked child must not touch the files
        database.close()

"""What is kept of streams beside their states, in SQLite: frozen or not, gains, points of plots, old states.

Everything is bounded: points and snapshots get sparser with age.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from neotta.errors import StateFileError
from neotta.neo.codec import StateFile
from neotta.neo.spill import exclusive, transaction, translated

FILE = "history.sqlite"
FORMAT = 4
POINTS, SNAPSHOTS = 1024, 48  # of a stream

_TABLES = """
CREATE TABLE IF NOT EXISTS frozen (stream TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS points (stream TEXT NOT NULL, time REAL NOT NULL, point TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS points_of ON points (stream);
CREATE TABLE IF NOT EXISTS snapshots (stream TEXT NOT NULL, time REAL NOT NULL, state BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS snapshots_of ON snapshots (stream, time);
CREATE TABLE IF NOT EXISTS judged (stream TEXT PRIMARY KEY, gain TEXT NOT NULL) WITHOUT ROWID;
"""


class History:
    """The history of all streams, in a folder or in memory.

    Threads may share it, processes may not: the database is locked. Times are seconds since 1970, as the clock said;
    the order of points is that of writing. A database that is in use or damaged raises a `StateFileError`, one that
    cannot be created a `StorageError`.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self._lock = threading.RLock()
        self._where = "memory" if folder is None else repr(str(Path(folder) / FILE))
        with self._translated():
            self._database = exclusive(None if folder is None else Path(folder), FILE)
            (version,) = self._database.execute("PRAGMA user_version").fetchone()
            if version not in (0, FORMAT):
                raise StateFileError(f"{self._where} was written by another version of neotta")
            self._database.executescript(_TABLES)
            self._database.execute(f"PRAGMA user_version = {FORMAT}")
            self.frozen = {stream for (stream,) in self._database.execute("SELECT stream FROM frozen")}
            self.judged = {name: json.loads(gain) for name, gain in self._database.execute("SELECT * FROM judged")}

    def close(self) -> None:
        """Close the database, so that another server can open it."""
        with self._lock:
            self._database.close()

    def freeze(self, stream: str, frozen: bool) -> None:
        with self._translated():
            text = "INSERT OR IGNORE INTO frozen VALUES (?)" if frozen else "DELETE FROM frozen WHERE stream = ?"
            self._database.execute(text, (stream,))
            (self.frozen.add if frozen else self.frozen.discard)(stream)

    def judge(self, stream: str, gain: Mapping[str, Any] | None) -> None:
        """Keep what answers of an operator measured."""
        with self._translated():
            self._database.execute("INSERT OR REPLACE INTO judged VALUES (?, ?)", (stream, json.dumps(gain)))
            self.judged[stream] = gain

    def forget(self, stream: str) -> None:
        """Delete everything about a stream."""
        with self._translated(), transaction(self._database):
            for table in ("frozen", "points", "snapshots", "judged"):
                self._database.execute(f"DELETE FROM {table} WHERE stream = ?", (stream,))
            self.frozen.discard(stream)
            self.judged.pop(stream, None)

    # ---- points

    def add_points(self, points: Mapping[str, Mapping[str, Any]], now: float | None = None) -> None:
        self._add("points", POINTS, {stream: json.dumps(point) for stream, point in points.items()}, now)

    def points(self, stream: str) -> list[dict[str, Any]]:
        """The points of a stream in order, each with its `time`."""
        with self._translated():
            query = "SELECT time, point FROM points WHERE stream = ? ORDER BY rowid"
            return [{"time": stamp, **json.loads(text)} for stamp, text in self._database.execute(query, (stream,))]

    # ---- snapshots

    def add_snapshots(self, states: Mapping[str, StateFile], now: float | None = None) -> None:
        """Keep copies of states."""
        self._add("snapshots", SNAPSHOTS, {stream: state.to_bytes() for stream, state in states.items()}, now)

    def snapshots(self, stream: str) -> list[float]:
        """The times of a stream's snapshots."""
        with self._translated():
            query = "SELECT time FROM snapshots WHERE stream = ? ORDER BY time"
            return [stamp for (stamp,) in self._database.execute(query, (stream,))]

    def snapshot(self, stream: str, before: float) -> tuple[float, StateFile] | None:
        """The last snapshot of a stream up to a time, and its own time; None if there is none."""
        with self._translated():
            query = "SELECT time, state FROM snapshots WHERE stream = ? AND time <= ? ORDER BY time DESC LIMIT 1"
            row = self._database.execute(query, (stream, before)).fetchone()
        return None if row is None else (row[0], StateFile.from_bytes(row[1], f"the snapshot of {stream!r}"))

    def _add(self, table: str, most: int, rows: Mapping[str, str | bytes], now: float | None) -> None:
        """Write rows of streams in one transaction; of more than `most`, every second of the older half goes."""
        run, stamp = self._database.execute, time.time() if now is None else now
        with self._translated(), transaction(self._database):
            for stream, row in rows.items():
                run(f"INSERT INTO {table} VALUES (?, ?, ?)", (stream, stamp, row))
                if run(f"SELECT COUNT(*) FROM {table} WHERE stream = ?", (stream,)).fetchone()[0] > most:
                    every = run(f"SELECT rowid FROM {table} WHERE stream = ? ORDER BY rowid", (stream,)).fetchall()
                    extra = every[1 : len(every) // 2 : 2]
                    self._database.executemany(f"DELETE FROM {table} WHERE rowid = ?", extra)

    # ---- the database

    def check_room(self) -> None:
        """Check that the disk takes some more."""
        with self._translated():
            for change in (
                "INSERT INTO snapshots VALUES ('', 0, zeroblob(65536))",
                "DELETE FROM snapshots WHERE stream = ''",
            ):
                with transaction(self._database):
                    self._database.execute(change)

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        with self._lock, translated(f"the points and snapshots in {self._where}"):
            yield

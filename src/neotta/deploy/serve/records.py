"""What is kept of cameras beside their states, in SQLite: names, frozen or not, history, alarms, snapshots.

Everything is bounded: points of a history get sparser with age, alarms and snapshots are counted.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.torch import load, save

from neotta.deploy.serve.engine import Snapshot
from neotta.errors import StateFileError, StorageError

FILE = "cameras.sqlite"
FORMAT = 2
POINTS = 1024  # of a camera's history
ALARMS = 256  # of a camera
SNAPSHOTS = 48  # of a camera

_TABLES = """
CREATE TABLE IF NOT EXISTS cameras (id TEXT PRIMARY KEY, name TEXT NOT NULL, frozen INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS points (camera TEXT NOT NULL, time REAL NOT NULL, figures TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS points_of ON points (camera);
CREATE TABLE IF NOT EXISTS alarms (camera TEXT NOT NULL, time REAL NOT NULL, about TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS alarms_of ON alarms (camera);
CREATE TABLE IF NOT EXISTS snapshots (camera TEXT NOT NULL, time REAL NOT NULL, state BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS snapshots_of ON snapshots (camera, time);
"""


class Camera(NamedTuple):
    """What a user said of a camera: the name to show, and whether it is frozen."""

    name: str
    frozen: bool = False


class Records:
    """The records of all cameras; threads may share them.

    Times are seconds since 1970, as the clock said: a clock that jumps leaves a gap or an overlap in a history, and
    nothing else, since order is that of writing.

    Args:
        folder: Folder of the database; None to keep it in memory.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self._lock = threading.RLock()
        self._where = ":memory:" if folder is None else str(Path(folder) / FILE)
        with self._translated():
            if folder is not None:
                Path(folder).mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(self._where, isolation_level=None, check_same_thread=False)
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = NORMAL")
            (version,) = self._database.execute("PRAGMA user_version").fetchone()
            if version not in (0, FORMAT):
                raise StateFileError(f"{self._where!r} was written by another version of neotta")
            self._database.executescript(_TABLES)
            self._database.execute(f"PRAGMA user_version = {FORMAT}")
        self._cameras = {camera: Camera(name, bool(frozen)) for camera, name, frozen in self._rows("cameras")}
        self._points = dict(self._database.execute("SELECT camera, COUNT(*) FROM points GROUP BY camera"))

    def _rows(self, table: str) -> list[tuple[Any, ...]]:
        with self._translated():
            return self._database.execute(f"SELECT * FROM {table}").fetchall()

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            self._database.close()

    # ---- cameras

    def cameras(self) -> dict[str, Camera]:
        """All cameras that a user named or froze, by id."""
        return dict(self._cameras)

    def camera(self, camera: str) -> Camera:
        """What a user said of a camera; the name is the id if nothing was said."""
        return self._cameras.get(camera, Camera(camera))

    def frozen(self, camera: str) -> bool:
        """Whether a camera is not to adapt."""
        entry = self._cameras.get(camera)
        return entry is not None and entry.frozen

    def describe(self, camera: str, *, name: str | None = None, frozen: bool | None = None) -> None:
        """Name a camera, or freeze it."""
        with self._translated():
            now = self.camera(camera)
            new = Camera(now.name if name is None else name, now.frozen if frozen is None else frozen)
            self._database.execute(
                "INSERT OR REPLACE INTO cameras VALUES (?, ?, ?)", (camera, new.name, int(new.frozen))
            )
            self._cameras[camera] = new

    def forget(self, camera: str) -> None:
        """Delete everything about a camera."""
        with self._translated(), self._transaction():
            for table, column in (
                ("cameras", "id"),
                ("points", "camera"),
                ("alarms", "camera"),
                ("snapshots", "camera"),
            ):
                self._database.execute(f"DELETE FROM {table} WHERE {column} = ?", (camera,))
            self._cameras.pop(camera, None)
            self._points.pop(camera, None)

    # ---- history and alarms

    def add_points(self, points: Mapping[str, Mapping[str, Any]], now: float | None = None) -> None:
        """Add one point to the history of each camera."""
        stamp = time.time() if now is None else now
        with self._translated(), self._transaction():
            rows = [(camera, stamp, json.dumps(figures)) for camera, figures in points.items()]
            self._database.executemany("INSERT INTO points VALUES (?, ?, ?)", rows)
            for camera in points:
                self._points[camera] = self._points.get(camera, 0) + 1
                if self._points[camera] > POINTS:
                    self._thin(camera)

    def _thin(self, camera: str) -> None:
        """Delete every second point of the older half of a history: the older, the sparser."""
        rows = self._database.execute("SELECT rowid FROM points WHERE camera = ? ORDER BY rowid", (camera,)).fetchall()
        old = rows[: len(rows) // 2]
        self._database.executemany("DELETE FROM points WHERE rowid = ?", old[1::2])
        self._points[camera] = len(rows) - len(old[1::2])

    def history(self, camera: str) -> list[dict[str, Any]]:
        """The points of a camera's history in order, each with its `time`."""
        with self._translated():
            query = "SELECT time, figures FROM points WHERE camera = ? ORDER BY rowid"
            return [{"time": stamp, **json.loads(text)} for stamp, text in self._database.execute(query, (camera,))]

    def add_alarm(self, camera: str, about: Mapping[str, Any], now: float | None = None) -> None:
        """Add an alarm."""
        with self._translated(), self._transaction():
            stamp = time.time() if now is None else now
            self._database.execute("INSERT INTO alarms VALUES (?, ?, ?)", (camera, stamp, json.dumps(dict(about))))
            self._bound("alarms", camera, ALARMS)

    def alarms(self, camera: str) -> list[dict[str, Any]]:
        """The alarms of a camera in order, each with its `time`."""
        with self._translated():
            query = "SELECT time, about FROM alarms WHERE camera = ? ORDER BY rowid"
            return [{"time": stamp, **json.loads(text)} for stamp, text in self._database.execute(query, (camera,))]

    # ---- snapshots

    def add_snapshot(self, camera: str, state: Snapshot, now: float | None = None) -> None:
        """Keep a copy of a camera's state."""
        with self._translated(), self._transaction():
            stamp = time.time() if now is None else now
            self._database.execute("INSERT INTO snapshots VALUES (?, ?, ?)", (camera, stamp, save(state)))
            self._bound("snapshots", camera, SNAPSHOTS)

    def snapshots(self, camera: str) -> list[float]:
        """The times of a camera's snapshots."""
        with self._translated():
            query = "SELECT time FROM snapshots WHERE camera = ? ORDER BY time"
            return [stamp for (stamp,) in self._database.execute(query, (camera,))]

    def snapshot(self, camera: str, before: float) -> tuple[float, Snapshot] | None:
        """The last snapshot of a camera up to a time, and its own time; None if there is none."""
        with self._translated():
            query = "SELECT time, state FROM snapshots WHERE camera = ? AND time <= ? ORDER BY time DESC LIMIT 1"
            row = self._database.execute(query, (camera, before)).fetchone()
        return None if row is None else (row[0], load(row[1]))

    def _bound(self, table: str, camera: str, most: int) -> None:
        """Delete the oldest rows of a camera beyond a number; snapshots get sparser with age, the first one stays."""
        rows = self._database.execute(
            f"SELECT rowid FROM {table} WHERE camera = ? ORDER BY rowid", (camera,)
        ).fetchall()
        if len(rows) <= most:
            return
        extra = rows[1 : len(rows) // 2 : 2] if table == "snapshots" else rows[: len(rows) - most]
        self._database.executemany(f"DELETE FROM {table} WHERE rowid = ?", extra)

    # ---- the database

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._database.execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        with self._lock:
            try:
                yield
            except (sqlite3.OperationalError, OSError) as error:
                raise StorageError(f"the records in {self._where!r} cannot be read or written: {error}") from error
            except sqlite3.DatabaseError as error:
                raise StateFileError(
                    f"the records in {self._where!r} are damaged ({error}): delete the file to start a new history"
                ) from error

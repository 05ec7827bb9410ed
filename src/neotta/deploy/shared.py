"""Streams that several processes or machines share: whole states with versions, in Redis or SQLite."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import threading
from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from neotta._extras import need
from neotta._warning import warn
from neotta.errors import InputError, OptionError, StateError, StateFileError, StorageError
from neotta.neo.codec import check_values, sealed, unsealed
from neotta.neo.context import paused, streams
from neotta.neo.files import check_offsets, state_of
from neotta.neo.stream_ids import StreamId, checked, for_rows, one
from neotta.neo.surgery import heads


class Store(Protocol):
    """Where states are kept, by key, each with a version. Errors are `StorageError`."""

    def read(self, key: str, after: int) -> tuple[int, bytes] | None:
        """The version and the state, if there is one with a version above `after`."""

    def write(self, key: str, version: int, state: bytes) -> bool:
        """Write a state, unless one with this version or a later one is there; return whether it was written."""


class RedisStore:
    """States in Redis, one hash each, compared and set with WATCH, MULTI and EXEC.

    ```py
    store = neotta.deploy.RedisStore("redis://127.0.0.1:6379/0")
    ```

    Args:
        url: Address of the server, also `rediss://` (TLS) or `unix://`.
        timeout: Seconds to wait for it.
    """

    def __init__(self, url: str, *, timeout: float = 1.0) -> None:
        self._redis = need("redis", "a store in Redis")
        self._client = self._redis.Redis.from_url(url, socket_timeout=timeout, socket_connect_timeout=timeout)

    def read(self, key: str, after: int) -> tuple[int, bytes] | None:
        """See `Store`."""
        try:
            if _version(self._client.hget(key, "version")) <= after:
                return None
            version, state = self._client.hmget(key, "version", "state")
        except self._redis.RedisError as error:
            raise StorageError(f"Redis cannot be read: {error}") from error
        return None if version is None else (_version(version), state or b"")

    def write(self, key: str, version: int, state: bytes) -> bool:
        """See `Store`."""
        try:
            with self._client.pipeline() as pipeline:
                pipeline.watch(key)
                if _version(pipeline.hget(key, "version")) >= version:
                    return False
                pipeline.multi()
                pipeline.hset(key, mapping={"version": version, "state": state})
                pipeline.execute()
        except self._redis.WatchError:  # somebody else wrote it meanwhile
            return False
        except self._redis.RedisError as error:
            raise StorageError(f"Redis cannot be written: {error}") from error
        return True


_LARGEST = 10**15
"""The last version. What is larger, or no number, is none: older than any, and written over."""


def _version(found: bytes | None) -> int:
    return int(found) if found is not None and found.isdigit() and len(found) < len(str(_LARGEST)) else 0


_SOUND = f"typeof(version) = 'integer' AND version BETWEEN 1 AND {_LARGEST} AND typeof(state) = 'blob'"


class SQLiteStore:
    """States in an SQLite database that several processes of one machine share.

    ```python
    store = neotta.deploy.SQLiteStore("shared.sqlite")
    ```

    Args:
        path: The database; created if it does not exist. Its folder must be on a local disk.
        timeout: Seconds to wait for another process that writes.
    """

    def __init__(self, path: str | os.PathLike[str], *, timeout: float = 5.0) -> None:
        try:
            self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=timeout)
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = FULL")  # a state is on disk when the call returns
            self._database.execute(
                "CREATE TABLE IF NOT EXISTS shared (key TEXT PRIMARY KEY, version INT NOT NULL, state BLOB NOT NULL)"
            )
        except sqlite3.Error as error:
            raise StorageError(f"the store {os.fspath(path)!r} cannot be opened: {error}") from error

    def read(self, key: str, after: int) -> tuple[int, bytes] | None:
        """See `Store`."""
        query = f"SELECT version, state FROM shared WHERE key = ? AND version > ? AND {_SOUND}"
        found: tuple[int, bytes] | None = self._run(query, (key, after)).fetchone()
        return found

    def write(self, key: str, version: int, state: bytes) -> bool:
        """See `Store`."""
        change = "INSERT INTO shared VALUES (?, ?, ?) ON CONFLICT (key) DO UPDATE SET version = excluded.version, "
        change += f"state = excluded.state WHERE version < excluded.version OR NOT ({_SOUND})"
        return self._run(change, (key, version, state)).rowcount == 1

    def _run(self, query: str, values: tuple[Any, ...]) -> sqlite3.Cursor:
        try:
            return self._database.execute(query, values)
        except sqlite3.Error as error:
            raise StorageError(f"the shared store cannot be used: {error}") from error


class SharedStreams:
    """A model with streams whose states are shared with other processes through a store.

    A call reads the states of its streams where the store has newer ones, predicts, and writes the new states before it
    returns. A state is replaced as a whole, never merged, and only by one with a higher version, which counts the calls
    that it has learnt from. If another process was faster, the newer state is read and learns from the samples in turn.

    If the store cannot be reached, calls are answered from memory, with a warning; what they teach is written by a
    later call or by `flush`. So a store that lost its data gets it back.

    ```python
    shared = neotta.deploy.SharedStreams(neotta.adapt(model, streams=True), neotta.deploy.SQLiteStore("shared.sqlite"))
    logits = shared(images, "gate")
    ```

    Args:
        model: A model adapted with `streams=True`, without `capacity` and `folder`, that returns logits, (B, C).
        store: Where the states are. Models with other weights, methods or options can share it: keys differ.
        prefix: What keys begin with.

    Attributes:
        reached: Whether the store could be reached when it was last used.

    Raises:
        OptionError: The model is adapted in another way.
    """

    def __init__(self, model: nn.Module, store: Store, *, prefix: str = "neotta") -> None:
        self.model, self.store = model, store
        self._tables = [neo.streams for neo in heads(model).values()]
        if any(not table.many or table.capacity is not None or table.spill is not None for table in self._tables):
            raise OptionError("shared streams need neotta.adapt(model, streams=True) without capacity and folder")
        about = json.dumps(state_of(model).about(), sort_keys=True)
        self._prefix = f"{prefix}:{hashlib.sha256(about.encode()).hexdigest()[:16]}:"
        self._versions: dict[StreamId, int] = {}  # of the streams in memory
        self.reached = True
        self._lock = threading.Lock()

    @torch.no_grad()
    def __call__(self, images: Tensor, ids: StreamId | Iterable[StreamId], *, adapt: bool = True) -> Tensor:
        """Adapt and predict, (B, ...) to (B, C).

        Args:
            images: What the model takes.
            ids: The stream of each sample, or one for all.
            adapt: Whether to learn; if not, no state changes.

        Raises:
            StateFileError: The stored state of a stream is damaged; `reset` replaces it.
        """
        names = for_rows(checked(ids), len(images))
        with self._lock:
            distinct = dict.fromkeys(names)
            reached = self._read(distinct)
            if not adapt:
                with paused(self.model), streams(names):
                    return self._checked(self.model(images))
            logits = self._learn(images, names)
            behind = self._write(distinct) if reached else []
            while behind:
                for item in behind:
                    self._versions[item] -= 1  # to that of the last state read or written
                if not self._read(behind):
                    break
                rows = [row for row, item in enumerate(names) if item in behind]
                logits[rows] = self._learn(images[rows], [names[row] for row in rows])
                behind = self._write(behind)
            return logits

    def flush(self) -> None:
        """Write every state in memory that is newer than the one in the store, for example before the process ends."""
        with self._lock:
            self._write(self._versions)

    def forget(self, stream: StreamId) -> None:
        """Drop a stream from memory; it stays in the store."""
        with self._lock:
            if self._versions.pop(one(stream), None) is not None:
                for table in self._tables:
                    table.reset(stream)

    def reset(self, stream: StreamId) -> None:
        """Let a stream begin again, in all processes.

        Raises:
            StorageError: The store cannot be reached.
        """
        item = one(stream)
        with self._lock:
            written = False
            while not written:
                stored = self.store.read(self._key(item), 0)
                self._begin(item)
                self._versions[item] = 1 + max(self._versions[item], 0 if stored is None else stored[0])
                written = self.store.write(self._key(item), self._versions[item], self._packed(item))

    def _learn(self, images: Tensor, names: Iterable[StreamId]) -> Tensor:
        distinct = dict.fromkeys(names)
        for item in distinct:
            if item not in self._versions:
                self._begin(item)
        with streams(names):
            logits = self._checked(self.model(images))
        for item in distinct:
            self._versions[item] += 1
        return logits

    def _begin(self, item: StreamId) -> None:
        for table in self._tables:
            table.put(table.table[:1].clone(), item)
        self._versions.setdefault(item, 0)

    def _read(self, ids: Iterable[StreamId]) -> bool:
        """Read the streams of which the store has newer states; return whether it can be reached."""
        try:
            for item in ids:
                found = self.store.read(self._key(item), self._versions.get(item, 0))
                if found is not None:
                    for table, state in zip(self._tables, self._unpacked(item, found[1]), strict=True):
                        table.put(state, item)
                    self._versions[item] = found[0]
        except StorageError as error:
            self._warn(error)
            return False
        self.reached = True
        return True

    def _write(self, ids: Iterable[StreamId]) -> list[StreamId]:
        """Write streams, and return those of which the store has this version or a later one."""
        behind = []
        try:
            for item in ids:
                if not self.store.write(self._key(item), self._versions[item], self._packed(item)):
                    behind.append(item)
        except StorageError as error:
            self._warn(error)
        return behind

    def _warn(self, error: StorageError) -> None:
        if self.reached:  # once for each time
            warn(f"{error}: what streams learn stays in memory until the store is back")
        self.reached = False

    def _key(self, item: StreamId) -> str:
        return self._prefix + json.dumps(item)

    def _packed(self, item: StreamId) -> bytes:
        return sealed("", torch.cat([table.state(item)[0].cpu().double() for table in self._tables]).numpy())

    def _unpacked(self, item: StreamId, content: bytes) -> list[Tensor]:
        widths = [table.layout.width for table in self._tables]
        damaged = f"the stored state of stream {item!r} is damaged: begin again with reset({item!r})"
        row = unsealed("", content, sum(widths))
        if row is None:
            raise StateFileError(damaged)
        states = torch.split(torch.from_numpy(row.copy())[None], widths, 1)
        try:
            for table, state in zip(self._tables, states, strict=True):
                check_values(table.layout.fields, state.numpy())
                check_offsets(table.rule, state, "it")
        except StateError as error:
            raise StateFileError(f"{damaged} ({error})") from error
        return list(states)

    def _checked(self, logits: Any) -> Tensor:
        if not isinstance(logits, Tensor):
            raise InputError(f"shared streams need a model that returns logits, got {type(logits).__name__}")
        return logits

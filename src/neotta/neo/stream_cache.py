"""A table with one row per stream; the least recently used rows can move to a store."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from neotta.errors import InputError, OptionError
from neotta.neo.memory import widest
from neotta.neo.rules import Field
from neotta.neo.stream_ids import StreamId
from neotta.neo.stream_store import StreamStore

Start = Callable[[], Mapping[str, Tensor]]
_FIRST = 64  # rows of a new table
_EVICT = 256  # maximum number of streams evicted together


def record_type(fields: Mapping[str, Field]) -> np.dtype[Any]:
    """The record type of a stream in a store."""
    kinds = {"count": "<i8", "real": "<f8", "narrow": "<f4"}
    return np.dtype([(name, kinds[field.kind], field.shape) for name, field in fields.items()])


class StreamCache(nn.Module):
    """The moments of streams, one row each. Not thread-safe: the caller holds a lock.

    Means are float32: a million streams of 768 numbers take 3.1 GB. The table grows when it is full. With a `capacity`,
    the least recently used streams move to `store` instead, and come back when they are needed. The cost of a batch
    does not depend on the number of streams.

    Args:
        fields: The fields of a stream.
        capacity: Maximum number of streams in memory.
        store: Holds the other streams.
        device: Device of the table.
    """

    count: Tensor

    def __init__(
        self,
        fields: Mapping[str, Field],
        capacity: int | None,
        store: StreamStore | None,
        device: torch.device | str | None,
    ) -> None:
        super().__init__()
        if (capacity is None) != (store is None):
            raise OptionError("capacity needs a folder for the other streams, and folder needs a capacity: set both")
        if capacity is not None and (not isinstance(capacity, int) or capacity < 1):
            raise OptionError(f"capacity is {capacity!r}: expected an integer, at least 1")
        self.fields = dict(fields)
        self.capacity = capacity
        self.store = store
        self._clear(torch.device(device or "cpu"))

    def _clear(self, device: torch.device) -> None:
        # The rows of the streams in memory, least recently used first. Row 0 is a reserved zero row, for streams that
        # were never seen.
        self._rows: OrderedDict[StreamId, int] = OrderedDict()
        self._free: list[int] = []
        self._next = 1
        for name, tensor in self._allocate(_FIRST, device).items():
            self.register_buffer(name, tensor, persistent=False)
        self._zero([0])

    # ---- streams in memory

    def admit(self, ids: Sequence[StreamId], create: Collection[StreamId], start: Start | None = None) -> list[int]:
        """Return the rows of streams, loaded from the store or, if in `create`, new; 0 for unknown streams.

        Args:
            ids: The streams, each once.
            create: Those of them to create if they do not exist.
            start: Called if streams are created: the values of some fields, (...) each, that they begin with.
        """
        if self.capacity is not None:
            if len(ids) > self.capacity:
                raise InputError(f"a batch of {len(ids)} streams does not fit into a capacity of {self.capacity}")
            for item in ids:
                if item in self._rows:
                    self._rows.move_to_end(item)
        rows = list(map(self._rows.get, ids))
        if None not in rows:
            return rows  # type: ignore[return-value]
        missing = [item for item in ids if item not in self._rows]
        found, fields = self.store.read(missing) if self.store else ([], {})
        stored = set(found)
        new = [item for item in missing if item not in stored and item in create] if create else []
        places = self._room(len(found) + len(new), len(ids) - len(missing))
        self._write(places[: len(found)], {name: torch.from_numpy(array.copy()) for name, array in fields.items()})
        begin = start() if start is not None and new else {}
        self._zero(places[len(found) :])
        self._write(places[len(found) :], {name: value.expand(len(new), -1) for name, value in begin.items()})
        self._rows.update(zip([*found, *new], places, strict=True))
        return [self._rows.get(item, 0) for item in ids]

    def _room(self, wanted: int, kept: int) -> list[int]:
        """Allocate rows for new streams; the `kept` most recently used streams are not evicted."""
        if self.capacity is not None and self.store is not None:
            needed = len(self._rows) + wanted - self.capacity
            if needed > 0:
                self._evict(self.store, min(max(needed, min(_EVICT, self.capacity // 8)), len(self._rows) - kept))
        fresh = max(0, wanted - len(self._free))
        if self._next + fresh > len(self.count):
            self._grow(self._next + fresh)
        rows_found = [self._free.pop() for _ in range(wanted - fresh)]
        rows_found += range(self._next, self._next + fresh)
        self._next += fresh
        return rows_found

    def _evict(self, store: StreamStore, number: int) -> None:
        """Move the least recently used streams to the store; they leave memory once they are written."""
        oldest = list(islice(self._rows, number))
        store.write(oldest, _arrays(self._read([self._rows[item] for item in oldest])))
        self._free += [self._rows.pop(item) for item in oldest]

    def flush(self, ids: Iterable[StreamId] | None = None) -> None:
        """Write the streams in memory to the store, or those of `ids` that are in memory, in one transaction."""
        if self.store is None:
            raise OptionError("these streams have no folder: save them with neotta.save(model, path)")
        held = list(self._rows) if ids is None else [item for item in ids if item in self._rows]
        self.store.write(held, _arrays(self._read([self._rows[item] for item in held])))

    # ---- rows

    def _allocate(self, rows: int, device: torch.device) -> dict[str, Tensor]:
        # Uninitialised, so that the system allocates memory only for the rows in use, also while the table grows.
        # Tensors created in inference mode cannot be updated outside it.
        kinds = {"count": torch.int64, "real": widest(device), "narrow": torch.float32}
        with torch.inference_mode(False):
            return {
                name: torch.empty(rows, *field.shape, dtype=kinds[field.kind], device=device)
                for name, field in self.fields.items()
            }

    def _grow(self, needed: int) -> None:
        """Grow the table to at least `needed` rows."""
        # While it grows, the table exists twice. On the CPU, memory that was never written only takes address space, so
        # the table grows in big steps, the last of which comes early.
        factor = 8 if self.count.device.type == "cpu" else 2
        rows = _FIRST
        while rows < needed:
            rows *= factor
        if self.capacity is not None:
            rows = min(rows, self.capacity + 1)
        try:
            new = self._allocate(rows, self.count.device)
        except RuntimeError:  # more than the machine has
            new = self._allocate(min(rows, needed + needed // 4), self.count.device)
        for name, old in self.named_buffers():
            new[name][: self._next] = old[: self._next]
            self._buffers[name] = new[name]

    def _zero(self, rows: Sequence[int]) -> None:
        index = torch.tensor(rows, dtype=torch.int64, device=self.count.device)
        for name, field in self.fields.items():
            getattr(self, name).index_fill_(0, index, field.start)

    def _read(self, rows: Sequence[int]) -> dict[str, Tensor]:
        index = torch.tensor(rows, dtype=torch.int64, device=self.count.device)
        return {name: buffer.index_select(0, index) for name, buffer in self.named_buffers()}

    def _write(self, rows: Sequence[int], state: Mapping[str, Tensor]) -> None:
        index = torch.tensor(rows, dtype=torch.int64, device=self.count.device)
        for name, tensor in state.items():
            buffer: Tensor = getattr(self, name)
            buffer.index_copy_(0, index, tensor.to(buffer))

    def newest(self, number: int) -> list[Tensor]:
        """Return a copy of the streams in memory that were created or loaded last, (K, ...) for each field."""
        latest = list(islice(reversed(self._rows.values()), number))
        return self.rows(torch.tensor(latest, dtype=torch.int64, device=self.count.device))

    def rows(self, places: Tensor) -> list[Tensor]:
        """Return a copy of these rows, (K, ...) for each field."""
        return [getattr(self, name).index_select(0, places) for name in self.fields]

    def set_rows(self, places: Tensor, state: Iterable[Tensor]) -> None:
        """Set these rows, (K, ...) for each field."""
        for name, values in zip(self.fields, state, strict=True):
            buffer: Tensor = getattr(self, name)
            buffer.index_copy_(0, places, values.to(buffer.dtype))

    # ---- single streams, and all streams

    def counts(self) -> dict[StreamId, int]:
        """Number of samples of each stream, including the store."""
        counts = self.count[: self._next].tolist()
        stored = self.store.counts() if self.store else {}
        return {**stored, **{item: counts[row] for item, row in self._rows.items()}}

    def read(self, stream: StreamId) -> dict[str, Tensor] | None:
        """Return a copy of a stream's state, (1, ...) each, or None if it was never seen."""
        self.admit([stream], ())
        return self._read([self._rows[stream]]) if stream in self._rows else None

    def write(self, stream: StreamId, state: Mapping[str, Tensor]) -> None:
        """Set a stream's state, (1, ...) each."""
        self.admit([stream], [stream])
        self._write([self._rows[stream]], state)

    def forget(self, stream: StreamId | None = None) -> None:
        """Delete one stream, or all."""
        if self.store is not None:
            self.store.delete(None if stream is None else [stream])
        if stream is None:
            self._clear(self.count.device)
        elif stream in self._rows:
            self._free.append(self._rows.pop(stream))

    def everything(self) -> tuple[list[StreamId], dict[str, Tensor]]:
        """Return the ids of all streams, including the store, and a copy of their state, (S, ...) each."""
        ids = list(self._rows)
        state = self._read(list(self._rows.values()))
        if self.store is None:
            return ids, state
        stored, fields = self.store.read()
        asleep = [place for place, item in enumerate(stored) if item not in self._rows]
        for name, tensor in state.items():
            state[name] = torch.cat([tensor.cpu(), torch.from_numpy(fields[name][asleep]).to(tensor.dtype)])
        return ids + [stored[place] for place in asleep], state

    def replace(self, ids: Sequence[StreamId], state: Mapping[str, Tensor]) -> None:
        """Replace all streams by what `everything` returned."""
        held = len(ids) if self.capacity is None else min(len(ids), self.capacity)
        if self.store is not None:
            rest = {name: tensor[held:] for name, tensor in state.items()}
            self.store.write(ids[held:], _arrays(rest), replace=True)
        self._clear(self.count.device)
        rows = self._room(held, 0)
        self._rows.update(zip(ids[:held], rows, strict=True))
        self._write(rows, {name: tensor[:held] for name, tensor in state.items()})

    # ---- moving and copying

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> StreamCache:
        """Move to another device, but keep the dtype."""
        device = fn(torch.empty(0, device=self.count.device)).device
        if device != self.count.device:
            for name, rows in self._used().items():
                real = self.fields[name].kind == "real"
                self._buffers[name] = rows.to(device, widest(device) if real else rows.dtype)
        return self

    def _used(self) -> dict[str, Tensor]:
        """Return a copy of the rows in use."""
        return {name: buffer[: self._next].clone() for name, buffer in self.named_buffers()}

    def __getstate__(self) -> dict[str, Any]:
        if self.store is not None:
            raise OptionError(
                "streams with a folder cannot be copied, as two models would write into one folder: use neotta.save, "
                "and load the file into the other model"
            )
        return {**self.__dict__, "_buffers": self._used()}

    def extra_repr(self) -> str:
        """Arguments shown when the module is printed."""
        limit = "" if self.capacity is None else f", capacity={self.capacity}"
        return f"{len(self._rows)} streams in memory{limit}"


def _arrays(state: Mapping[str, Tensor]) -> dict[str, np.ndarray[Any, Any]]:
    return {name: tensor.cpu().numpy() for name, tensor in state.items()}

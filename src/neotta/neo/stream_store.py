"""Streams on disk: where the least recently used ones wait until they are needed again.

The states of streams lie in numbered slots (`slots.py`), and an index says which stream is in which slot (`index.py`).
A stream that is written goes to a free slot. Only when it is on the disk, the index gets a line about it, and only then
the slot that it had before is free. So whenever the process dies, the index tells of whole streams. It is in memory as
well: some 150 bytes for each stream on disk.
"""

from __future__ import annotations

import contextlib
import json
import os
import weakref
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from neotta.errors import StateFileError, StorageError
from neotta.neo.statefile import Array
from neotta.neo.stream_ids import StreamId
from neotta.neo.stream_index import Index
from neotta.neo.stream_slots import Slots

COUNTS = ("count", "batches", "rejected")
_AT_ONCE = 4096  # streams whose records are made at a time


class StreamStore:
    """A folder of streams; `None` where a method takes ids stands for all of them.

    The folder belongs to one process at a time, and to one model. Every stream has a checksum.

    Args:
        folder: The folder; it is made if it is not there.
        features: The length d of an embedding.
        owner: What the streams belong to; a folder of another owner is refused.

    Raises:
        StateFileError: A file is damaged, or another process is using the folder.
        StateMismatchError: It belongs to another model or method.
        StorageError: It cannot be made or written.
    """

    def __init__(self, folder: str | os.PathLike[str], features: int, owner: str) -> None:
        self.folder = Path(folder)
        self.features = features
        with self._writing(), contextlib.ExitStack() as opened:
            self.folder.mkdir(parents=True, exist_ok=True)
            opened.callback(os.close, _locked(self.folder))
            self._index = Index(self.folder / "index.jsonl", owner)
            self._slots = Slots(self.folder, features)
            opened.callback(self._slots.close)
            weakref.finalize(self, opened.pop_all().close)
        used = set(self._index.slots.values())
        self._next = max(used, default=-1) + 1
        self._free = [slot for slot in range(self._next) if slot not in used]

    def read(self, ids: Sequence[StreamId] | None = None) -> tuple[list[StreamId], dict[str, Tensor]]:
        """Read those of the streams that are there: their ids, and their state, (n, ...) each."""
        known = self._index.slots
        found = [item for item in ids if item in known] if ids is not None else sorted(known, key=known.__getitem__)
        try:
            records = self._slots.read([known[item] for item in found])
        except OSError as error:
            raise StateFileError(f"the streams in {str(self.folder)!r} cannot be read: {error}") from error
        for item, record in zip(found, records, strict=True):
            if _crc(item, record) != record["crc"]:
                raise StateFileError(
                    f"stream {item!r} in {str(self.folder)!r} is damaged: it does not match its checksum "
                    f"(forget it with neotta.reset(model, stream={item!r}))"
                )
        kinds = dict.fromkeys(COUNTS, np.int64) | {"scatter": np.float64, "mean": np.float32}
        return found, {name: torch.from_numpy(records[name].astype(kind)) for name, kind in kinds.items()}

    def write(self, ids: Sequence[StreamId], tensors: Mapping[str, Tensor], *, replace: bool = False) -> None:
        """Write streams, all of them or, with an error, none; with `replace`, in the place of all that are there."""
        known = self._index.slots
        before = [known[item] for item in (known if replace else ids) if item in known]
        slots = self._take(len(ids))
        try:
            with self._writing():
                for start in range(0, len(ids), _AT_ONCE):
                    part = slice(start, start + _AT_ONCE)
                    self._slots.write(slots[part], self._records(ids[part], tensors, part))
                if replace:
                    self._index.replace(dict(zip(ids, slots, strict=True)))
                else:
                    self._index.put(ids, slots)
        except StorageError:
            self._free += slots
            raise
        self._free += before

    def delete(self, ids: Sequence[StreamId] | None = None) -> None:
        """Forget streams."""
        known = self._index.slots
        gone = [item for item in (known if ids is None else ids) if item in known]
        free = [known[item] for item in gone]
        with self._writing():
            if ids is None:
                self._index.replace({})
            elif gone:
                self._index.drop(gone)
        self._free += free

    def counts(self) -> dict[StreamId, int]:
        """How many samples stand behind each stream in the folder."""
        known = self._index.slots
        return dict(zip(known, self._slots.counts(list(known.values())), strict=True))

    def _take(self, number: int) -> list[int]:
        """Slots that are free, and then ones that were never used."""
        slots = [self._free.pop() for _ in range(min(number, len(self._free)))]
        more = number - len(slots)
        slots += range(self._next, self._next + more)
        self._next += more
        return slots

    def _records(self, ids: Sequence[StreamId], tensors: Mapping[str, Tensor], part: slice) -> Array:
        records = np.zeros(len(ids), self._slots.record)
        for name in (*COUNTS, "scatter", "mean"):
            records[name] = tensors[name][part].cpu().numpy()
        records["crc"] = [_crc(item, record) for item, record in zip(ids, records, strict=True)]
        return records

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageError(
                f"the streams cannot be written to {str(self.folder)!r}: {error.strerror or error} "
                "(what was there before is whole)"
            ) from error


def _crc(item: StreamId, record: np.void) -> int:
    """A checksum of one stream: its id and its numbers."""
    return zlib.crc32(record.tobytes()[:-4], zlib.crc32(json.dumps(item).encode()))


def _locked(folder: Path) -> int:
    """Keep other processes, and other models in this one, out of a folder, where the system can (not on Windows)."""
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:
        pass
    except BlockingIOError:
        os.close(handle)
        raise StateFileError(
            f"the folder of streams {str(folder)!r} is in use by another model or process: each needs its own"
        ) from None
    return handle

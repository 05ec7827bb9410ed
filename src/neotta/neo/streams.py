"""Streams: the table of states by stream id. A model without streams has a table of one row."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import nullcontext
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from neotta._warning import warn
from neotta.errors import InputError, ModelError, OptionError
from neotta.neo.context import current_ids
from neotta.neo.spill import Spill
from neotta.neo.state import Rule, widest
from neotta.neo.stream_ids import StreamId, one

_EVICT = 256  # most streams that leave the table together


class Streams(nn.Module):
    """States by stream id, in the rows of one table.

    Threads may share it: every change and every complete read holds a lock. A compiled graph runs without it.

    Args:
        rule: How states learn, and what is subtracted.
        size: Length of the vectors that the rule learns from.
        many: Whether samples have stream ids; if not, all belong to one stream.
        capacity: Most streams in memory. The least recently used ones beyond it move to `spill`, or are forgotten.
        spill: Holds the streams that are not in memory.
        device: Device of the table.
    """

    table: Tensor

    def __init__(
        self,
        rule: Rule,
        size: int,
        *,
        many: bool = False,
        capacity: int | None = None,
        spill: Spill | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        if capacity is not None and (type(capacity) is not int or capacity < 1):
            raise OptionError(f"capacity is {capacity!r}: expected an integer, at least 1")
        self.rule, self.size, self.many, self.capacity, self.spill = rule, size, many, capacity, spill
        self.layout = rule.layout(size)
        self.lock = threading.RLock()
        with torch.inference_mode(False):  # tensors created in inference mode cannot be updated outside it
            self._start = self.layout.blank(1, device)
        self._clear()

    def _clear(self) -> None:
        # The rows of streams in memory, least recently used first. Row 0 is the only stream of a model without ids;
        # otherwise it is what streams begin with.
        self._rows: OrderedDict[StreamId, int] = OrderedDict()
        self._free: list[int] = []
        with torch.inference_mode(False):
            self.register_buffer("table", self._start.clone(), persistent=False)
        self.baseline = self.table.clone()  # the start of a single stream, for `neotta.sync`

    # ---- one call

    @torch.no_grad()
    def step(self, rows: Tensor, bias: Tensor | None, *, adapt: bool = True, weights: Tensor | None = None) -> Tensor:
        """Learn from rows, (N, size), if `adapt`, and return what to subtract from them, (N, size) or (1, size).

        The bias of the head, (C,), is 0 by default, and the weight of each row, (N,), is 1.
        """
        rows = rows.detach()  # an exported program does not keep the no_grad
        bias = rows.new_zeros(1) if bias is None else bias.detach()
        weights = None if weights is None else weights.to(self.table)
        if self.many:
            return self._step_many(rows, bias, adapt, weights)
        with nullcontext() if is_compiling() else self.lock:
            if not adapt or rows.shape[0] == 0:
                return self.rule.standing(self.table)
            return self._update(rows[None], bias, None if weights is None else weights[None], self.table)[0]

    def _update(self, rows: Tensor, bias: Tensor, weights: Tensor | None, states: Tensor) -> Tensor:
        after, offsets = self.rule.update(states, rows, weights, bias)
        if rows.is_cpu and not is_compiling() and (bad := int((after[:, 1] - states[:, 1]).sum())):
            warn(f"{bad} rows contain NaN or Inf, or are too large: predicted, but not learnt from")
        states.copy_(after)
        return offsets

    @torch._disable_dynamo  # type: ignore[attr-defined]  # torch.compiler.disable imports the compiler at once: 1 s
    def _step_many(self, rows: Tensor, bias: Tensor, adapt: bool, weights: Tensor | None) -> Tensor:
        if is_compiling():  # by torch.export: torch.compile is disabled here
            raise ModelError(
                "a model with many streams cannot be traced: export one of them after neotta.fold(model, stream=...), "
                "or save it with neotta.save(model, path, stream=...) and load it into a model without streams"
            )
        ids = current_ids(len(rows))
        if not ids:
            return rows
        counted = ids if weights is None else [ids[row] for row in weights.nonzero().flatten().tolist()]
        with self.lock:
            distinct = {item: place for place, item in enumerate(dict.fromkeys(ids))}
            stream = np.array([distinct[item] for item in ids])
            places = self._index(self._admit(list(distinct), counted if adapt else ()))
            states = self.table[places]
            if not adapt:
                return self.rule.standing(states)[self._index(stream)]
            order, turn = _arranged(stream, len(distinct))
            if order.shape[1] == 1:
                arranged, known = rows[:, None], None if weights is None else weights[:, None]
            else:
                index = self._index(order)
                arranged, known = rows[index], (index >= 0).to(rows.dtype)
                known = known if weights is None else known * weights[index]
            offsets = self._update(arranged, bias, known, states)
            self.table.index_copy_(0, places, states)
            return offsets[self._index(stream), self._index(np.minimum(turn, offsets.shape[1] - 1))]

    def _index(self, numbers: Any) -> Tensor:
        return torch.as_tensor(numbers, dtype=torch.int64).to(self.table.device)

    # ---- rows of the table

    def _admit(self, ids: Sequence[StreamId], create: Collection[StreamId]) -> list[int]:
        """The rows of streams, read from the spill or, if in `create`, new; 0 for others that were never seen."""
        if self.spill is not None:
            self.spill.check_process()  # also for streams that are in memory
        if self.capacity is not None and len(ids) > self.capacity:
            raise InputError(f"a batch of {len(ids)} streams does not fit into a capacity of {self.capacity}")
        for item in ids:
            if item in self._rows:
                self._rows.move_to_end(item)
        missing = [item for item in ids if item not in self._rows]
        if missing:
            stored, states = self.spill.read(missing) if self.spill is not None else ([], self.table[:0])
            wanted = set(create).difference(stored)
            new = [item for item in missing if item in wanted]
            places = self._room(len(stored) + len(new), len(ids) - len(missing))
            first = self.table[:1].expand(len(new), -1)
            self.table.index_copy_(0, self._index(places), torch.cat([states.to(self.table), first]))
            self._rows.update(zip([*stored, *new], places, strict=True))
        return [self._rows.get(item, 0) for item in ids]

    def _room(self, wanted: int, busy: int) -> list[int]:
        """Rows for more streams; the `busy` most recently used ones stay in memory."""
        capacity = len(self._rows) + wanted if self.capacity is None else self.capacity
        over = len(self._rows) + wanted - capacity
        if over > 0:
            oldest = list(islice(self._rows, min(max(over, min(_EVICT, capacity // 8)), len(self._rows) - busy)))
            if self.spill is not None:
                self.flush(oldest)
            self._free += [self._rows.pop(item) for item in oldest]
        used = 1 + len(self._rows) + len(self._free)
        more = wanted - len(self._free)
        if more > 0:
            if used + more > len(self.table):
                self._grow(used + more)
            self._free += range(used + more - 1, used - 1, -1)
        return [self._free.pop() for _ in range(wanted)]

    def _grow(self, needed: int) -> None:
        rows = max(64, 2 * needed) if self.capacity is None else min(max(64, 2 * needed), self.capacity + 1)
        with torch.inference_mode(False):
            table = torch.empty(rows, self.layout.width, dtype=self.table.dtype, device=self.table.device)
            table[: len(self.table)] = self.table
            self.table = table

    # ---- single streams, and all of them

    def state(self, stream: StreamId | None = None) -> Tensor:
        """A copy of the state of a stream, (1, width); without ids, of the only one."""
        with self.lock:
            item = self.check_stream(stream)
            if item is None:
                return self.table[:1].clone()
            place = self._admit([item], ())[0]
            if place == 0:
                raise InputError(f"there is no stream {stream!r}: it was never seen")
            return self.table[place : place + 1].clone()

    def alone(self, stream: StreamId | None = None) -> Streams:
        """A table whose only row is a copy of the state of one stream; without ids, of the only one."""
        copy = Streams(self.rule, self.size, device=self.table.device)
        copy.put(self.state(stream))
        return copy

    @torch.no_grad()
    def put(self, state: Tensor, stream: StreamId | None = None) -> None:
        """Set the state of a stream, (1, width)."""
        with self.lock:
            item = self.check_stream(stream)
            place = 0 if item is None else self._admit([item], [item])[0]
            self.table[place : place + 1] = state.to(self.table)
            self.baseline = self.table[:1].clone()

    @torch.no_grad()
    def begin_with(self, state: Tensor) -> None:
        """Let streams that were never seen, and those that are reset, begin with a state, (1, width)."""
        with self.lock:
            self._start.copy_(state)
            self.table[:1] = self._start

    @torch.no_grad()
    def reset(self, stream: StreamId | None = None) -> None:
        """Forget one stream, or everything."""
        with self.lock:
            item = None if stream is None else self.check_stream(stream)
            if not self.many:
                self.put(self._start)
                return
            if self.spill is not None:
                self.spill.delete(None if item is None else [item])
            if item is None:
                self._clear()
            elif item in self._rows:
                self._free.append(self._rows.pop(item))

    def check_stream(self, stream: StreamId | None) -> StreamId | None:
        """Check that a stream is named if, and only if, there are streams, and return its plain id."""
        if self.many and stream is None:
            raise InputError("this model has one state per stream: name a stream, for example stream='gate'")
        if not self.many and stream is not None:
            raise InputError("this model has no streams: adapt it with streams=True, or omit the stream")
        return None if stream is None else one(stream)

    def everything(self) -> tuple[list[StreamId], Tensor]:
        """The ids of all streams, also on disk, least recently used first, and a copy of their states, (S, width)."""
        with self.lock:
            if not self.many:
                return [], self.table[:1].clone()
            ids, states = list(self._rows), self.table[self._index(list(self._rows.values()))]
            if self.spill is None:
                return ids, states
            stored, more = self.spill.read()
            asleep = [place for place, item in enumerate(stored) if item not in self._rows]
            return [stored[place] for place in asleep] + ids, torch.cat([more[asleep], states.cpu()])

    @torch.no_grad()
    def replace(self, ids: Sequence[StreamId], states: Tensor) -> None:
        """Replace all streams by what `everything` returned."""
        with self.lock:
            if not self.many:
                self.put(states)
                return
            over = 0 if self.capacity is None else max(0, len(ids) - self.capacity)
            if self.spill is not None:
                self.spill.write(ids[:over], states[:over], replace=True)
            self._clear()
            places = self._room(len(ids) - over, 0)
            self._rows.update(zip(ids[over:], places, strict=True))
            self.table.index_copy_(0, self._index(places), states[over:].to(self.table))

    def counts(self) -> dict[StreamId, int]:
        """Number of samples of each stream, also of those on disk."""
        with self.lock:
            numbers = self.table[:, 0].tolist()
            stored = self.spill.counts() if self.spill is not None else {}
            return {**stored, **{item: int(numbers[row]) for item, row in self._rows.items()}}

    def total(self) -> int:
        """Number of samples seen, in all streams."""
        return sum(self.counts().values()) if self.many else int(self.table[0, 0])

    def flush(self, ids: Iterable[StreamId] | None = None) -> None:
        """Write the streams in memory, or those of `ids`, to disk in one transaction."""
        if self.spill is None:
            raise OptionError("these streams have no folder: save them with neotta.save(model, path)")
        with self.lock:
            held = list(self._rows) if ids is None else [item for item in ids if item in self._rows]
            self.spill.write(held, self.table[self._index([self._rows[item] for item in held])].cpu())

    def drop(self, ids: Iterable[StreamId]) -> None:
        """Forget what memory holds of streams; what is on disk is read again."""
        with self.lock:
            self._free += [self._rows.pop(item) for item in ids if item in self._rows]

    # ---- moving and copying

    @torch.inference_mode(False)
    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Streams:
        """Move to another device, but keep the most precise dtype."""
        device = fn(torch.empty(0, device=self.table.device)).device
        for name in ("table", "baseline", "_start"):
            setattr(self, name, getattr(self, name).to(device, widest(device)))
        return self

    def __getstate__(self) -> dict[str, Any]:
        if self.spill is not None:
            raise OptionError(
                "streams with a folder cannot be copied, as two models would write into one folder: use neotta.save, "
                "and load the file into the other model"
            )
        with self.lock:
            attributes = {name: value for name, value in self.__dict__.items() if name != "lock"}
            return {
                **attributes,
                "_rows": self._rows.copy(),
                "_free": [*self._free],
                "_buffers": {"table": self.table.clone()},
            }

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.lock = threading.RLock()

    def extra_repr(self) -> str:
        """Arguments shown when the module is printed."""
        limit = "" if self.capacity is None else f", capacity={self.capacity}"
        return f"{self.rule}, {f'{len(self._rows)} streams in memory{limit}' if self.many else f'count={self.total()}'}"


def _arranged(stream: np.ndarray[Any, Any], count: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The rows of each stream in order, (K, T), -1 beyond its last; and the place of each row in its stream, (N,)."""
    rows = np.argsort(stream, kind="stable")
    lengths = np.bincount(stream, minlength=count)
    turn = np.empty_like(stream)
    turn[rows] = np.arange(len(stream)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    order = np.full((count, lengths.max()), -1)
    order[stream, turn] = np.arange(len(stream))
    return order, turn

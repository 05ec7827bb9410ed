"""One centroid per stream, updated and read without a loop over the streams."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neotta._warning import warn
from neotta.errors import InputError, ModelError, StateMismatchError
from neotta.neo import moments
from neotta.neo.groups import grouped
from neotta.neo.memory import Memory, OneStreamMemory
from neotta.neo.moments import Groups, Moments
from neotta.neo.row_weights import per_row
from neotta.neo.rules import FleetStart, Rule
from neotta.neo.shift_memory import one_stream, run_rule
from neotta.neo.state_checks import check_fields, check_ids, completed
from neotta.neo.stream_cache import StreamCache
from neotta.neo.stream_ids import StreamId, current, every, one, pack, unpack
from neotta.neo.stream_store import StreamStore

_FLEET = (32, 256)  # fewest and most streams that are asked where a new one begins
_LARGEST = moments.limit(torch.float32)  # as the table and the store can hold it, whatever the dtype of the model
_FLEET_NUMBERS = 2**16  # that many numbers of each field, at most


class StreamMemory(Memory):
    """Running means of embeddings, one per stream.

    Call the model inside `with neotta.streams(ids):` with one id per sample; a batch may mix streams. For each stream,
    the result equals that of a separate `Centroid`, to float32 precision, unless it begins where the fleet is; a batch
    counts as one batch for each of its streams. Without adapting, a stream that was never seen gets a zero vector.

    Sums are computed in float64 (float32 on devices without it), means are stored in float32. After n updates the
    relative error of a mean is about 3e-8 √n: 1e-6 after a thousand, 3e-5 after a million.

    `torch.compile` leaves this module out of its graphs, because the streams are looked up in Python.

    Args:
        features: Length d of an embedding.
        rule: How batches are weighted.
        capacity: Maximum number of streams in memory.
        store: Holds the other streams.
        device: Device of the table.
        start: Where a new stream begins: `"plain"` with no shift, `"fleet"` with that of the other streams (for rules
            that can tell one, see `neotta.neo.fleet_start`). It is fixed when the stream is created.
    """

    many = True

    def __init__(
        self,
        features: int,
        rule: Rule,
        *,
        capacity: int | None = None,
        store: StreamStore | None = None,
        device: torch.device | str | None = None,
        start: FleetStart = "plain",
    ) -> None:
        super().__init__(features, rule)
        self.start = start
        self.cache = StreamCache(rule.fields(features), capacity, store, device)

    # ---- one batch

    @torch._disable_dynamo  # type: ignore[attr-defined]  # torch.compiler.disable imports the compiler at once: 1 s
    @torch.no_grad()
    def step(
        self,
        rows: Tensor,
        samples: int = 1,
        *,
        bias: Tensor | None = None,
        adapt: bool = True,
        weights: Tensor | None = None,
    ) -> Tensor:
        """Add each embedding, (N, d), to its stream, and return the centroid of each row, (N, d).

        Raises:
            InputError: There are no stream ids, or the wrong number of them.
            ModelError: The model is traced by `torch.export`.
        """
        if torch.compiler.is_compiling():  # by torch.export: torch.compile is disabled here
            raise ModelError(
                "a model with many streams cannot be traced: export one of them after neotta.fold(model, stream=...), "
                "or save it with neotta.save(model, path, stream=...) and load it into a model without streams"
            )
        ids = current(samples, self)
        if weights is not None:
            weights = per_row(weights, rows, samples)
            adapt = adapt and bool((weights > 0).any())
        wide = torch.promote_types(rows.dtype, torch.float32)
        if not ids:
            return rows.to(wide)
        with self._lock:
            distinct, groups = grouped(ids, len(rows) // len(ids))
            new = _counted(ids, weights) if adapt else ()
            start = self._fleet_start if self.start == "fleet" else None
            places = torch.from_numpy(np.array(self.cache.admit(distinct, new, start))).to(rows.device)
            state = self.rule.State(*self.cache.rows(places))
            if self.rule.space == "logits":
                state, subtract = run_rule(self.rule, state, rows, groups, bias, adapt, weights, _LARGEST)
            else:
                state, subtract = self._take(state, rows, groups, adapt, weights)
            if adapt:
                if weights is not None:  # row 0 stands for the streams that were not created
                    kept = places.nonzero().flatten()
                    places, state = places[kept], self.rule.State(*(column[kept] for column in state))
                self.cache.set_rows(places, state)
            return subtract.to(wide)

    def _take(
        self, state: Moments, rows: Tensor, groups: Groups, adapt: bool, weights: Tensor | None
    ) -> tuple[Moments, Tensor]:
        """Add embeddings with the rule."""
        # Sums need a wide dtype. If each stream has a single sample there is nothing to sum, and float32 suffices: the
        # stored mean is rounded once in either case.
        wide = state.mean.dtype if groups.alone and weights is None else state.scatter.dtype
        rows, state = rows.to(wide), state._replace(mean=state.mean.to(wide))
        finite = _finite(rows, weights) if adapt else None
        return self.rule.take(state, rows, groups, finite=finite, bias=None, adapt=adapt, weights=weights)

    def _fleet_start(self) -> dict[str, Tensor]:
        """Where new streams begin: at the shift of the other streams in memory, with a bound on how many are asked."""
        asked = min(max(_FLEET_NUMBERS // self.features, _FLEET[0]), _FLEET[1])
        fleet = self.rule.State(*self.cache.newest(asked))
        if fleet.mean.device.type == "cpu":  # where NumPy is faster
            arrays = self.rule.State(*(column.numpy() for column in fleet))
            shift = torch.from_numpy(np.array(self.rule.start(arrays)))
        else:
            shift = self.rule.start(fleet)
        return {"shift": shift, "start": shift}

    # ---- single streams

    def counts(self) -> dict[StreamId, int]:
        """Number of samples of each stream, including those on disk."""
        with self._lock:
            return self.cache.counts()

    def total(self) -> int:
        """Number of samples of all streams, including those on disk."""
        return sum(self.counts().values())

    def centroid(self, stream: StreamId | None = None) -> OneStreamMemory:
        """Return a copy of a stream's centroid.

        Raises:
            InputError: The stream does not exist, or none is given.
        """
        name = self._named(stream)
        with self._lock:
            state = self.cache.read(name)
        if state is None:
            raise InputError(f"there is no stream {name!r}: it was never seen")
        centroid = self.blank()
        centroid.load_state({key: tensor[0] for key, tensor in state.items()})
        return centroid

    def blank(self) -> OneStreamMemory:
        """Return an empty centroid with the same rule."""
        return one_stream(self.features, self.features, self.rule, self.cache.count.device)

    def put(self, centroid: OneStreamMemory, stream: StreamId | None = None) -> None:
        """Set a stream's centroid."""
        name = self._named(stream)
        state = {key: tensor[None] for key, tensor in centroid.state().items()}
        check_fields(self.cache.fields, state, dict(self.cache.named_buffers()))  # a mean may be too large for float32
        with self._lock:
            self.cache.write(name, state)

    def reset(self, stream: StreamId | None = None) -> None:
        """Forget one stream, or all."""
        with self._lock:
            self.cache.forget(None if stream is None else one(stream))

    def checkpoint(self) -> Callable[[], None]:
        """Remember the streams of the current block; the function that is returned goes back to them."""
        with self._lock:
            before = {item: self.cache.read(item) for item in every()}

        def undo() -> None:
            with self._lock:
                for item, state in before.items():
                    self.cache.forget(item)
                    if state is not None:
                        self.cache.write(item, state)

        return undo

    def _named(self, stream: StreamId | None) -> StreamId:
        if stream is None:
            raise InputError("this model has one centroid per stream: name a stream with stream=")
        return one(stream)

    # ---- all streams

    def flush(self, ids: Iterable[StreamId] | None = None) -> None:
        """Write the streams in memory to disk, so that another process can later resume them.

        Args:
            ids: Only these, if they changed since the last call; the others are on disk already. All are written in one
                transaction, which is on disk when the call returns.
        """
        with self._lock:
            self.cache.flush(ids)

    def state(self) -> dict[str, Tensor]:
        """Return a copy of all streams, including those on disk, (S, ...) each, and their ids."""
        with self._lock:
            ids, state = self.cache.everything()
        return {**state, "ids": pack(ids)}

    def check_state(self, state: Mapping[str, Tensor]) -> None:
        """Check that `state` has the entries and shapes of this table, and plausible values."""
        state = completed(self.cache.fields, state)
        mine = {**{name: tuple(rows.shape[1:]) for name, rows in self.cache.named_buffers()}, "ids": ()}
        theirs = {name: tuple(tensor.shape[1:]) for name, tensor in state.items()}
        if mine != theirs or any(tensor.dim() == 0 for tensor in state.values()):
            raise StateMismatchError(f"expected the entries {mine} for each stream, got {theirs}")
        rows = {name: tensor for name, tensor in state.items() if name != "ids"}
        check_ids(unpack(state["ids"]), rows)
        check_fields(self.cache.fields, rows, dict(self.cache.named_buffers()))

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Replace all streams by what `state` returned."""
        self.check_state(state)
        state = completed(self.cache.fields, state)
        ids = unpack(state["ids"])
        with self._lock:
            self.cache.replace(ids, {name: tensor for name, tensor in state.items() if name != "ids"})

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:  # the table and the list of its rows, from one moment
            return {**super().__getstate__(), "_modules": {"cache": copy.deepcopy(self.cache)}}


def _counted(ids: Sequence[StreamId], weights: Tensor | None) -> Collection[StreamId]:
    """The ids of the samples that count; those of weight 0 create no stream."""
    if weights is None:
        return ids
    repeat = len(weights) // len(ids)
    return {ids[row // repeat] for row in weights.nonzero().flatten().tolist()}


def _finite(rows: Tensor, weights: Tensor | None) -> Tensor | None:
    """Which rows are finite, (N,), with a warning about the others; None if all are known to be."""
    on_host = rows.device.type == "cpu"
    # The sum is small only if all rows are. Reading it would wait for another device.
    if on_host and torch.linalg.vector_norm(rows, 1).item() <= _LARGEST:
        return None
    finite: Tensor = moments.usable(rows, _LARGEST)
    bad = int((~finite if weights is None else ~finite & (weights > 0)).sum()) if on_host else 0
    if bad:
        warn(f"{bad} of {len(finite)} embeddings contain NaN or Inf, or are too large: predicted, but excluded")
    return finite

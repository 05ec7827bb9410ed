"""A centroid for each of many streams: updated and read in one step, without a loop over the streams."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from neotta._warning import warn
from neotta.errors import InputError, ModelError, StateMismatchError
from neotta.neo.groups import EachItsOwn, ManyStreams
from neotta.neo.memory import Memory, OneStreamMemory
from neotta.neo.moments import Groups, Moments
from neotta.neo.rules import Rule
from neotta.neo.shift_memory import one_stream, run_rule
from neotta.neo.stream_cache import StreamCache
from neotta.neo.stream_ids import StreamId, current, one, pack, unpack
from neotta.neo.stream_store import StreamStore


class StreamMemory(Memory):
    """Running means of embeddings, one for each stream.

    Call the model inside `with neotta.streams(ids):`, one id for each sample of the batch; it may mix streams. A batch
    answers for each stream exactly as a `Centroid` of that stream alone would, to the precision of float32, and counts
    as one batch for each of its streams. A stream that was never seen and is not taken in gets a zero vector.

    Sums are made in float64 (float32 on devices that have nothing better), the means are kept in float32. After n
    updates such a mean is off by about 3e-8 √n of its size: 1e-6 after a thousand, 3e-5 after a million.

    `torch.compile` leaves this module out of its graphs, as finding the streams is the work of Python.

    Args:
        features: The length d of an embedding.
        rule: How a batch is taken in.
        capacity: Number of streams held in memory at most.
        store: Where the others are.
        device: Where the table is.
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
    ) -> None:
        super().__init__(features, rule)
        self.cache = StreamCache(rule.fields(features), capacity, store, device)

    # ---- one batch

    @torch._disable_dynamo  # type: ignore[attr-defined]  # torch.compiler.disable imports the compiler at once: 1 s
    @torch.no_grad()
    def step(self, rows: Tensor, samples: int = 1, *, bias: Tensor | None = None, adapt: bool = True) -> Tensor:
        """Take in a batch of embeddings, (N, d), each into its stream, and return the centroid of each row, (N, d).

        Raises:
            InputError: There are no stream ids, or not as many as samples.
            ModelError: The model is traced by `torch.export`.
        """
        if torch.compiler.is_compiling():  # by torch.export, as torch.compile stays out of here
            raise ModelError(
                "a model with many streams cannot be traced: export one of them, neotta.fold(model, stream=...), or "
                "neotta.save(model, path, stream=...) and load it into an ordinary model"
            )
        ids = current(samples)
        wide = torch.promote_types(rows.dtype, torch.float32)
        if not ids:
            return rows.to(wide)
        with self._lock:
            distinct, groups = _grouped(ids, len(rows) // len(ids))
            places = torch.from_numpy(np.array(self.cache.admit(distinct, create=adapt))).to(rows.device)
            state = self.rule.State(*self.cache.rows(places))
            if self.rule.space == "logits":
                state, subtract = run_rule(self.rule, state, rows, groups, bias, adapt)
            else:
                state, subtract = self._take(state, rows, groups, adapt)
            if adapt:
                self.cache.set_rows(places, state)
            return subtract.to(wide)

    def _take(self, state: Moments, rows: Tensor, groups: Groups, adapt: bool) -> tuple[Moments, Tensor]:
        """Let the rule take in embeddings."""
        # Sums are made wide. Where each stream has a single sample there is nothing to sum, and the float32 of the
        # table does: what is stored is rounded once in either case.
        wide = state.mean.dtype if groups.alone else state.scatter.dtype
        rows, state = rows.to(wide), state._replace(mean=state.mean.to(wide))
        finite = _finite(rows) if adapt else None
        return self.rule.take(state, rows, groups, finite=finite, bias=None, adapt=adapt)

    # ---- the streams one by one

    def counts(self) -> dict[StreamId, int]:
        """Number of samples of each stream, those on disk too."""
        with self._lock:
            return self.cache.counts()

    def total(self) -> int:
        """Number of samples of all streams together, those on disk too."""
        return sum(self.counts().values())

    def centroid(self, stream: StreamId | None = None) -> OneStreamMemory:
        """A copy of one stream's centroid.

        Raises:
            InputError: There is no such stream, or none is named.
        """
        name = self._named(stream)
        with self._lock:
            state = self.cache.read(name)
        if state is None:
            raise InputError(f"there is no stream {name!r}: it has not been seen")
        centroid = self.blank()
        centroid.load_state({key: tensor[0] for key, tensor in state.items()})
        return centroid

    def blank(self) -> OneStreamMemory:
        """An empty centroid of the kind that each stream has."""
        return one_stream(self.features, self.features, self.rule, self.cache.count.device)

    def put(self, centroid: OneStreamMemory, stream: StreamId | None = None) -> None:
        """Set one stream's centroid."""
        name = self._named(stream)
        with self._lock:
            self.cache.write(name, {key: tensor[None] for key, tensor in centroid.state().items()})

    def reset(self, stream: StreamId | None = None) -> None:
        """Forget one stream, or all of them."""
        with self._lock:
            self.cache.forget(None if stream is None else one(stream))

    def _named(self, stream: StreamId | None) -> StreamId:
        if stream is None:
            raise InputError("this model keeps one centroid per stream: name one of them with stream=")
        return one(stream)

    # ---- all together

    def flush(self) -> None:
        """Write the streams in memory to the disk as well; another process can then go on with the folder."""
        with self._lock:
            self.cache.flush()

    def state(self) -> dict[str, Tensor]:
        """A copy of all streams, those on disk too, (S, ...) each, and their ids."""
        with self._lock:
            ids, state = self.cache.everything()
        return {**state, "ids": pack(ids)}

    def check_state(self, state: Mapping[str, Tensor]) -> None:
        """Raise an error unless `state` has the entries and shapes of this table."""
        mine = {**{name: tuple(rows.shape[1:]) for name, rows in self.cache.named_buffers()}, "ids": ()}
        theirs = {name: tuple(tensor.shape[1:]) for name, tensor in state.items()}
        if mine != theirs:
            raise StateMismatchError(f"a memory of many streams consists of {mine} for each, got {theirs}")

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Replace all streams by what `state` returned."""
        self.check_state(state)
        ids = unpack(state["ids"])
        with self._lock:
            self.cache.replace(ids, {name: tensor for name, tensor in state.items() if name != "ids"})


def _grouped(ids: Sequence[StreamId], repeat: int) -> tuple[Sequence[StreamId], Groups]:
    """The distinct ids of a batch, and which of them each row belongs to; `repeat` rows follow one another."""
    distinct = ids if len(set(ids)) == len(ids) else list(dict.fromkeys(ids))
    if distinct is ids and repeat == 1:
        return ids, EachItsOwn()
    places = {item: place for place, item in enumerate(distinct)}
    return distinct, ManyStreams(np.repeat([places[item] for item in ids], repeat), len(distinct))


def _finite(rows: Tensor) -> Tensor | None:
    """Which rows are finite, (N,), with a warning of the others; None if it is known that all are."""
    on_host = rows.device.type == "cpu"
    # The sum is finite only if everything is; looking at it would make another device wait.
    if on_host and math.isfinite(rows.sum().item()):
        return None
    finite = torch.isfinite(rows).all(dim=1)
    if on_host and not bool(finite.all()):
        bad = int((~finite).sum())
        warn(f"{bad} of {len(finite)} embeddings hold NaN or Inf: predicted, but kept out of their streams")
    return finite

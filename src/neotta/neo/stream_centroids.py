"""A centroid for each of many streams: updated and read in one step, without a loop over the streams."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neotta.errors import InputError
from neotta.neo.centroid import Centroid, Weighting
from neotta.neo.stream_cache import StreamTable
from neotta.neo.stream_ids import StreamId
from neotta.neo.stream_store import StreamStore


class StreamCentroids(StreamTable):
    """Running means of embeddings, one row for each stream.

    The rules are those of `Centroid`; a batch of several streams counts as one batch for each of them. Sums are made
    in float64 (float32 on devices that have nothing better), the means are kept in float32. After n updates such a
    mean is off by about 3e-8 √n of its size: 1e-6 after a thousand, 3e-5 after a million; up to ten million samples
    that is less than what chance in the samples does.

    Args:
        features: The length d of an embedding.
        weighting: See `Centroid`.
        alpha: See `Centroid`.
        debias: See `Centroid`.
        variance: Track the total variances too, as shrinkage needs them.
        capacity: How many streams are held in memory at most.
        store: Where the others are.
    """

    def __init__(
        self,
        features: int,
        *,
        weighting: Weighting = "sample",
        alpha: float | None = None,
        debias: bool = False,
        variance: bool = False,
        capacity: int | None = None,
        store: StreamStore | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(features, capacity, store, device)
        self.rule: dict[str, Any] = {"weighting": weighting, "alpha": alpha, "debias": debias, "variance": variance}
        Centroid(features, **self.rule)  # checks the rule

    # ---- one batch

    @torch.no_grad()
    def step(self, embeddings: Tensor, ids: Sequence[StreamId], *, adapt: bool = True, shrink: bool = False) -> Tensor:
        """Take in a batch, each sample into its stream, and return the centroids to subtract.

        Args:
            embeddings: (N, d), N a multiple of the number of ids: N / B consecutive rows belong to each id.
            ids: The stream of each sample, B of them.
            adapt: Whether the batch is taken in; if not, nothing changes.
            shrink: Whether the centroids are shrunk towards zero (James-Stein).

        Returns:
            The centroid of each row's stream, (N, d), in float32 or better.
        """
        wide = torch.promote_types(embeddings.dtype, torch.float32)
        if not ids:
            return embeddings.to(wide)
        with self._lock:
            rows, segments = self._find(ids, adapt, len(embeddings) // len(ids))
            means = self._update(embeddings, rows, segments) if adapt else self.mean.index_select(0, rows)
            centres = self._centres(means, rows, shrink).to(wide)
        return centres if segments is None else centres.index_select(0, segments)

    def _find(self, ids: Sequence[StreamId], create: bool, repeat: int) -> tuple[Tensor, Tensor | None]:
        """The rows (K,) of the streams of a batch, and which of them each embedding belongs to.

        The latter is (N,), or None if it is just one after the other.
        """
        distinct = ids if len(set(ids)) == len(ids) else list(dict.fromkeys(ids))
        device = self.mean.device
        rows = torch.from_numpy(np.array(self._admit(distinct, create))).to(device)
        if distinct is ids and repeat == 1:
            return rows, None
        places = {item: place for place, item in enumerate(distinct)}
        segments = torch.from_numpy(np.array([places[item] for item in ids])).to(device)
        return rows, segments if repeat == 1 else segments.repeat_interleave(repeat)

    def _update(self, embeddings: Tensor, rows: Tensor, segments: Tensor | None) -> Tensor:
        """Take in embeddings (N, d); returns the new means of their streams, (K, d)."""
        # Sums are made wide. Where each stream has a single sample there is nothing to sum, and the float32 of the
        # table does: what is stored is rounded once in either case.
        table, count = self.mean, self.count
        wide = table.dtype if segments is None else self.scatter.dtype
        batch, counts, rejected = self._means(embeddings.to(wide), segments, len(rows))
        some = counts if segments is None else counts.clamp(max=1)
        means = table.index_select(0, rows).to(wide)
        seen = count.index_select(0, rows)
        share = self._share(seen, counts, some, rows, wide)
        if self.rule["variance"]:
            self._spread(embeddings, batch, segments, rows, (batch - means).square().sum(1) * (seen * share))
        means = means.lerp_(batch, share.unsqueeze(1)).to(table.dtype)
        table.index_copy_(0, rows, means)
        count.index_add_(0, rows, counts)
        self.batches.index_add_(0, rows, some)
        if rejected is not None:
            self.rejected.index_add_(0, rows, rejected)
        return means

    def _means(self, values: Tensor, segments: Tensor | None, streams: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Mean (K, d) and number (K,) of the finite rows of each stream, and the number of the others, or None."""
        on_host = values.device.type == "cpu"
        ones = torch.ones(len(values), dtype=torch.int64, device=values.device)
        # The sum is finite only if everything is; looking at it would make another device wait.
        if on_host and math.isfinite(values.sum().item()):
            if segments is None:
                return values, ones, None
            counts = _summed(ones, segments, streams)
            return _summed(values, segments, streams) / counts.unsqueeze(1), counts, None
        finite = torch.isfinite(values).all(dim=1)
        if on_host and not bool(finite.all()):
            warnings.warn(
                f"{int((~finite).sum())} of {len(finite)} embeddings hold NaN or Inf: predicted, but kept out of their "
                "streams",
                RuntimeWarning,
                stacklevel=5,
            )
        counts = _summed(finite.to(torch.int64), segments, streams)
        sums = _summed(torch.where(finite.unsqueeze(1), values, 0.0), segments, streams)
        return sums / counts.clamp(min=1).unsqueeze(1), counts, _summed(ones, segments, streams) - counts

    def _spread(
        self, embeddings: Tensor, batch: Tensor, segments: Tensor | None, rows: Tensor, between: Tensor
    ) -> None:
        """Add to the scatter what a batch has inside, and what lies between it and what was there, (K,)."""
        centres = batch if segments is None else batch.index_select(0, segments)
        inside = (embeddings.to(centres.dtype) - centres).square().sum(1)
        inside = inside.nan_to_num(0.0, 0.0)  # rows that are not finite stay out
        self.scatter.index_add_(0, rows, (_summed(inside, segments, len(rows)) + between).to(self.scatter.dtype))

    def _share(self, seen: Tensor, counts: Tensor, some: Tensor, rows: Tensor, dtype: torch.dtype) -> Tensor:
        """What share of the new mean a batch gets in each stream, (K,): 0 where none of its rows is finite.

        Args:
            seen: How many samples stand behind the mean, (K,).
            counts: How many rows are finite, (K,).
            some: Whether any are, 0 or 1, (K,).
            rows: The streams' rows in the table, (K,).
            dtype: Of the result.
        """
        alpha: float | None = self.rule["alpha"]
        if alpha is not None:
            return some.to(dtype) * alpha
        if self.rule["weighting"] == "batch":
            return some / (self.batches.index_select(0, rows) + 1).to(dtype)
        return counts / (seen + counts).to(dtype).clamp_(min=1)

    def _centres(self, means: Tensor, rows: Tensor, shrink: bool) -> Tensor:
        """The centroids to subtract, (K, d), from the means of the streams in these rows."""
        if shrink:
            count = self.count.index_select(0, rows)
            noise = self.scatter.index_select(0, rows) / ((count - 1).clamp(min=1) * count.clamp(min=1))
            signal = means.to(self.scatter.dtype).square().sum(1)
            factor = torch.where((count > 1) & (signal > 0), (1.0 - noise / signal).clamp(min=0.0), 0.0)
            return means * factor.unsqueeze(1)
        if self.rule["debias"]:
            alpha = self.rule["alpha"]
            rate = math.log1p(-alpha) if alpha < 1.0 else -math.inf
            steps = self.batches.index_select(0, rows).clamp(min=1).to(self.scatter.dtype)
            weight = -torch.expm1(steps * rate)
            return means / torch.where(weight > 0, weight, 1.0).unsqueeze(1)
        return means

    # ---- one stream

    def centroid(self, stream: StreamId) -> Centroid:
        """A copy of one stream's centroid.

        Raises:
            InputError: There is no such stream.
        """
        state = self.read(stream)
        if state is None:
            raise InputError(f"there is no stream {stream!r}: it has not been met")
        centroid = self.blank()
        centroid.load_state({name: tensor[0] for name, tensor in state.items()})
        return centroid

    def blank(self) -> Centroid:
        """An empty centroid of the kind that each stream has."""
        return Centroid(self.features, **self.rule, device=self.mean.device)

    def put(self, stream: StreamId, centroid: Centroid) -> None:
        """Set one stream's centroid."""
        self.write(stream, {name: tensor[None] for name, tensor in centroid.state().items()})


def _summed(values: Tensor, segments: Tensor | None, streams: int) -> Tensor:
    """Sums over each stream, (N, ...) to (K, ...)."""
    if segments is None:
        return values
    return torch.zeros(streams, *values.shape[1:], dtype=values.dtype, device=values.device).index_add_(
        0, segments, values
    )

"""The centroid: the running mean of the embeddings of one stream."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from neotta._warning import warn
from neotta.errors import InputError, OptionError
from neotta.neo import moments
from neotta.neo.memory import OneStreamMemory
from neotta.neo.moments import LARGEST_COUNT, Moments
from neotta.neo.row_weights import per_row
from neotta.neo.rules import MeanRule

_ORDINARY = 1e15  # sums of a batch below this need no second look


class Centroid(OneStreamMemory):
    """Running mean of embeddings, (d,).

    The mean is float64 (float32 on devices without it) whatever the dtype of the model, and the counts are integers, so
    it stays accurate over any number of samples. Rows with NaN or Inf are excluded and counted in `rejected`.

    Args:
        features: Length d of an embedding.
        rule: How batches are weighted; or its options by keyword, for example `alpha=0.1` (see `Rule`).
        device: Device of the buffers.
    """

    rule: MeanRule
    count: Tensor
    batches: Tensor
    rejected: Tensor
    mean: Tensor
    scatter: Tensor
    discount: Tensor

    def __init__(
        self, features: int, rule: MeanRule | None = None, *, device: torch.device | str | None = None, **options: Any
    ) -> None:
        super().__init__(features, rule or MeanRule(**options), device)

    # ---- reading

    def shrunk(self, dtype: torch.dtype | None = None) -> Tensor:
        """The mean shrunk towards zero according to its uncertainty (James-Stein), (d,)."""
        with self.guard():
            shrunk: Tensor = self.mean * moments.shrink_factor(self.moments())
        return shrunk.to(dtype or self.mean.dtype)

    def total_variance(self) -> Tensor:
        """Unbiased variance of the embeddings summed over their coordinates, (); 0 for fewer than two samples."""
        if not self.rule.variance:
            raise OptionError("this centroid does not track the variance: create it with variance=True")
        with self.guard():
            variance: Tensor = self.scatter / (moments.weight(self.moments()) - 1).clamp(min=1)
            return variance

    # ---- changing

    def update(self, embeddings: Tensor) -> None:
        """Add a batch of embeddings, (B, d); B may be 0.

        Raises:
            InputError: The tensor has the wrong shape.
        """
        if embeddings.dim() != 2 or embeddings.shape[1] != self.features:
            raise InputError(f"expected embeddings of shape (B, {self.features}), got {tuple(embeddings.shape)}")
        self.step(embeddings)

    def step(
        self,
        rows: Tensor,
        samples: int = 1,
        *,
        bias: Tensor | None = None,
        adapt: bool = True,
        weights: Tensor | None = None,
    ) -> Tensor:
        """Add a batch of embeddings, (N, d), and return the vector to subtract, (d,)."""
        if rows.requires_grad:  # `no_grad` around everything would double the time on a CPU
            rows = rows.detach()
        wide = torch.promote_types(rows.dtype, torch.float32)
        with self.guard():
            if adapt and rows.shape[0]:
                if weights is not None:
                    self._take(rows, per_row(weights, rows, samples), warning=rows.is_cpu and not is_compiling())
                elif rows.is_cpu and not is_compiling():
                    self._take_on_host(rows, wide)
                else:
                    self._take(rows)
            centre: Tensor = self.rule.centre(self.moments())
            return centre.to(wide, copy=True)

    def _take_on_host(self, rows: Tensor, wide: torch.dtype) -> None:
        """Add a batch on the CPU, where reading counts is fast.

        The sum of a batch is finite only if all its rows are. (If it is not, it may also have overflowed.) If it is
        large, one of the rows may be too large for the moments.
        """
        total = rows.sum(0, dtype=wide)
        if self.rule.variance or not torch.linalg.vector_norm(total, 1).item() <= _ORDINARY:
            self._take(rows, warning=True)
            return
        state, size = self.moments(), len(rows)
        new = Moments(size, 1, None, total.to(state.mean.dtype).div_(size), None)
        seen = Moments(state.count.item(), state.batches.item(), None, state.mean, None, state.discount.item())
        moments.combine(state, new, self.rule.share(seen, new))

    def _take(self, rows: Tensor, weights: Tensor | None = None, warning: bool = False) -> None:
        """Add a batch without reading values back, which would wait for the device and break a compiled graph."""
        state = self.moments()
        largest = moments.limit(rows.dtype, state.mean.dtype)
        rows = rows.to(state.mean.dtype)
        finite = moments.usable(rows, largest)
        new = moments.summarise(rows, finite=finite, variance=self.rule.variance, weights=weights)
        if warning and (bad := int(new.rejected)):
            warn(f"{bad} of {len(rows)} embeddings contain NaN or Inf, or are too large: predicted, but excluded")
        moments.combine(state, new, self.rule.share(state, new))

    @torch.no_grad()
    def set(self, mean: Tensor, count: int = 0) -> None:
        """Set the centroid to a known one, for example of another domain.

        Args:
            mean: The centroid, (d,).
            count: Number of samples it counts as. With 0, the next update replaces it. A moving average continues from
                it, whatever the count.
        """
        if mean.shape != self.mean.shape:
            raise InputError(f"expected a centroid of {self.features} numbers, got shape {tuple(mean.shape)}")
        if not moments.usable(mean.to(self.mean.dtype), moments.limit(self.mean.dtype)):
            raise InputError("the centroid contains NaN or Inf, or is too large")
        if not 0 <= count <= LARGEST_COUNT:
            raise InputError(f"count is {count}: expected a number of samples, from 0 to 2**53")
        debias, alpha = self.rule.debias, self.rule.alpha
        with self.guard():
            self.reset()
            # A debiased moving average treats this as one batch: `value` divides by alpha.
            self.mean.copy_(mean * alpha if debias and alpha is not None else mean)
            self.count.fill_(count)
            self.batches.fill_(1 if count or debias else 0)

    def extra_repr(self) -> str:
        """Arguments shown when the module is printed."""
        rule = self.rule
        how = f"alpha={rule.alpha}" if rule.alpha is not None else f"weighting={rule.weighting!r}"
        return f"{self.features}, {how}, count={int(self.count)}"

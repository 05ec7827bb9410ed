"""The moments of a stream: the number of samples, their mean and their scatter.

All arithmetic on means (update, merge, subtract, shrink) is here. The functions take NumPy arrays or torch tensors, of
one stream or of a table of streams (leading dimensions, one row per stream), and do not import torch.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

COUNTS = ("count", "batches", "rejected")
LARGEST_COUNT = 2**53  # up to here every integer is exact in float64, too
Squares = Callable[[Any], Any]


class Moments(NamedTuple):
    """The moments of one stream, or of a table of streams.

    Attributes:
        count: Number of samples, (...), integers.
        batches: Number of batches that contained any of them, (...).
        rejected: Number of rows excluded because of NaN or Inf, (...).
        mean: Mean of the samples, (..., d).
        scatter: Sum of squared distances to the mean, over all coordinates, (...); may be None for a batch.
        discount: Number of samples minus the sum of their weights, (...); None if every sample has weight 1. Means are
            weighted by this sum, and it adds up, so merging is exact with weights too.
    """

    count: Any
    batches: Any
    rejected: Any
    mean: Any
    scatter: Any
    discount: Any = None


class Groups(Protocol):
    """Which stream each row of a batch belongs to.

    Attributes:
        alone: Whether each row is the only one of its stream.
    """

    alone: bool

    def total(self, values: Any) -> Any:
        """Sum over the rows of each stream, (N, ...) to (..., ...)."""

    def spread(self, values: Any) -> Any:
        """Give each row the value of its stream, (..., ...) to (N, ...)."""


class OneStream:
    """All rows belong to one stream."""

    alone = False

    def total(self, values: Any) -> Any:
        """Sum over all rows, (N, ...) to (...)."""
        return values.sum(0)

    def spread(self, values: Any) -> Any:
        """The same value for all rows (by broadcasting)."""
        return values


ONE_STREAM = OneStream()


def limit(*dtypes: Any) -> float:
    """The largest number that is taken in, where rows and moments have these dtypes: sums of powers do not overflow."""
    return 1e90 if min(dtype.itemsize for dtype in dtypes) >= 8 else 1e16


def usable(rows: Any, largest: float) -> Any:
    """Which rows of samples, (N, d), can be taken in, (N,): those without NaN, Inf or numbers beyond `largest`."""
    return (abs(rows) <= largest).all(-1)


def squares(values: Any) -> Any:
    """Squared length of vectors, (..., d) to (...)."""
    return (values * values).sum(-1)


def summarise(
    rows: Any,
    groups: Groups = ONE_STREAM,
    *,
    finite: Any = None,
    variance: bool = False,
    squares: Squares = squares,
    weights: Any = None,
) -> Moments:
    """Compute the moments of a batch.

    Args:
        rows: Samples, (N, d).
        groups: Which stream each row belongs to.
        finite: Which rows count, (N,) bool; None for all.
        variance: Whether to compute the scatter.
        squares: Squared length of vectors, (..., d) to (...).
        weights: How much each row counts, (N,); None for 1 each. Rows of weight 0 are not samples.
    """
    if weights is not None:
        return _weighted(rows, groups, finite, variance, squares, weights)
    xp = namespace(rows)
    every = xp.ones_like(rows[:, 0], dtype=xp.int64)
    if groups.alone and finite is None:  # a row is its own mean
        return Moments(every, every, None, rows, xp.zeros_like(rows[:, 0]) if variance else None)
    values, kept = (rows, every) if finite is None else (xp.where(finite[:, None], rows, 0.0), finite * every)
    count = groups.total(kept)
    mean = groups.total(values) / _column(_at_least_one(as_real(count, rows)))
    scatter = None
    if variance:
        scatter = groups.total(squares(values - groups.spread(mean)) * kept)
    return Moments(count, _any(count), groups.total(every) - count, mean, scatter)


def _weighted(rows: Any, groups: Groups, finite: Any, variance: bool, squares: Squares, weights: Any) -> Moments:
    """The moments of a batch whose rows have weights, (N,)."""
    xp = namespace(rows)
    usable = weights == weights if finite is None else finite  # every weight is a number
    counted, bad = usable & (weights > 0), ~usable & (weights > 0)
    one = xp.ones_like(rows[:, 0], dtype=xp.int64)
    weights = xp.where(counted, weights, 0.0)
    values = xp.where(counted[:, None], rows, 0.0)
    count, total = groups.total(counted * one), groups.total(weights)
    mean = groups.total(values * weights[:, None]) / _column(_nonzero(total))
    scatter = groups.total(squares(values - groups.spread(mean)) * weights) if variance else None
    rejected = groups.total(bad * one)
    return Moments(count, _any(count), rejected, mean, scatter, as_real(count, total) - total)


def combine(old: Moments, new: Moments, share: Any, squares: Squares = squares) -> None:
    """Add `new` to `old`, in place; `share`, (...), is the weight of `new` in the mean.

    With the share from `proportion` this is exact: `old` then describes the samples of both.
    """
    count, batches, rejected, mean, scatter, discount = old
    step = new.mean - mean
    if new.scatter is not None:
        scatter[...] += new.scatter + squares(step) * (weight(old) * share)
    mean += step * _column(share)
    count += new.count
    batches += new.batches
    if new.rejected is not None:
        rejected += new.rejected
    if new.discount is not None:
        discount[...] += new.discount


def weight(moments: Moments) -> Any:
    """Sum of the weights of the samples, (...)."""
    count = as_real(moments.count, moments.mean)
    return count if moments.discount is None else count - as_real(moments.discount, moments.mean)


def weight_share(old: Moments, new: Moments) -> Any:
    """The share of `new` in the weights of both, (...); 0 where both are 0."""
    total = as_real(old.count + new.count, old.mean)  # summed first: ahead-of-time compilers misread the difference
    for part in (old, new):
        if part.discount is not None:
            total = total - as_real(part.discount, old.mean)
    return weight(new) / _nonzero(total)


def proportion(old: Any, new: Any, like: Any) -> Any:
    """The share of `new` in old + new, (...), in the dtype of `like`; 0 where both are 0."""
    return as_real(new, like) / _nonzero(as_real(old + new, like))


def difference(now: Moments, before: Moments, by: str = "count") -> Moments:
    """The moments that, merged into `before`, give `now`.

    The division magnifies the rounding error of the means, but merging the result reduces it by the same factor.
    """
    mine, all_of_it = (weight(m) if by == "count" else as_real(getattr(m, by), now.mean) for m in (before, now))
    more = all_of_it - mine
    some = _nonzero(more)
    mean = before.mean + (now.mean - before.mean) * _column(all_of_it / some)
    between = squares(mean - before.mean) * (mine * more / _nonzero(all_of_it))
    scatter = (now.scatter - before.scatter - between).clip(min=0.0)
    nothing = as_real(more > 0, now.mean)
    return Moments(
        now.count - before.count,
        now.batches - before.batches,
        now.rejected - before.rejected,
        mean * _column(nothing),
        scatter * nothing,
        None if now.discount is None else now.discount - before.discount,
    )


def shrink_factor(moments: Moments, squares: Squares = squares) -> Any:
    """The James-Stein factor max(0, 1 - s² / (n |mean|²)), (...), where s² is the total variance.

    It is 0 for fewer than two samples, and tends to 1.
    """
    xp = namespace(moments.mean)
    count, signal = weight(moments), squares(moments.mean)
    noise = moments.scatter / (_at_least_one(count - 1) * _at_least_one(count))
    known = (count > 1) & (signal > 0)
    return xp.where(known, (1.0 - noise / xp.where(known, signal, 1.0)).clip(min=0.0), 0.0)


def moving_weight(batches: Any, alpha: float, like: Any) -> Any:
    """Weight of the data, as opposed to the zero start, in a moving average, (...): 1 - (1 - alpha)^batches."""
    rate = math.log1p(-alpha) if alpha < 1.0 else -math.inf  # accurate for tiny alpha too
    weight = -namespace(like).expm1(_at_least_one(as_real(batches, like)) * rate)
    return namespace(like).where(weight > 0, weight, 1.0)


# ---- differences between NumPy and torch


def namespace(array: Any) -> Any:
    """The module of an array: numpy, or torch (already imported if there is a tensor)."""
    return np if isinstance(array, (np.ndarray, np.generic)) else sys.modules["torch"]


def as_real(count: Any, like: Any) -> Any:
    """Convert numbers to the floating point dtype of `like`; a Python number becomes a float, which is fastest."""
    if isinstance(count, (int, float)):
        return float(count)
    return count.to(like.dtype) if hasattr(count, "to") else np.asarray(count, like.dtype)


def _at_least_one(count: Any) -> Any:
    """Clamp a count, to divide by it."""
    return max(count, 1.0) if isinstance(count, float) else count.clip(min=1)


def _nonzero(total: Any) -> Any:
    """Replace 0 by 1, to divide by it."""
    if isinstance(total, float):
        return total if total > 0 else 1.0
    return namespace(total).where(total > 0, total, 1.0)


def _any(count: Any) -> Any:
    """1 where the count is positive, else 0."""
    return (count > 0) * 1


def _column(values: Any) -> Any:
    """Add a trailing dimension, so that values (...) multiply vectors (..., d)."""
    return values if isinstance(values, float) else values[..., None]

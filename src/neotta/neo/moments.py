"""What is remembered of a stream: how many samples were seen, their mean, and how far they scatter about it.

Everything that updates, merges, subtracts or shrinks a mean is written here, once. The functions take NumPy arrays or
torch tensors, of one stream or of a table of them (leading dimensions, one row for each stream), and do not import
torch themselves.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

COUNTS = ("count", "batches", "rejected")
Squares = Callable[[Any], Any]


class Moments(NamedTuple):
    """The moments of one stream, or of a table of streams.

    Attributes:
        count: Number of samples, (...), whole numbers.
        batches: Number of batches that held any of them, (...).
        rejected: Number of rows kept out because of NaN or Inf, (...).
        mean: Mean of the samples, (..., d).
        scatter: Sum of squared distances to the mean, over all coordinates, (...); of a batch None if not tracked.
    """

    count: Any
    batches: Any
    rejected: Any
    mean: Any
    scatter: Any


class Groups(Protocol):
    """Which stream each row of a batch belongs to.

    Attributes:
        alone: Whether each row is the only one of its stream.
    """

    alone: bool

    def total(self, values: Any) -> Any:
        """Sum over the rows of each stream, (N, ...) to (..., ...)."""

    def spread(self, values: Any) -> Any:
        """Give each row the value of its stream, the inverse of `total` in shape."""


class OneStream:
    """All rows belong to one stream."""

    alone = False

    def total(self, values: Any) -> Any:
        """Sum over all rows, (N, ...) to (...)."""
        return values.sum(0)

    def spread(self, values: Any) -> Any:
        """The same value for all rows, by broadcasting."""
        return values


ONE_STREAM = OneStream()


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
) -> Moments:
    """The moments of a batch.

    Args:
        rows: Samples, (N, d).
        groups: Which stream they belong to.
        finite: Which rows count, (N,) bool; None if all of them do.
        variance: Whether to compute the scatter.
        squares: Squared length of vectors, (..., d) to (...).
    """
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


def combine(old: Moments, new: Moments, share: Any, squares: Squares = squares) -> None:
    """Move `old`, in place, towards `new`, which gets this share, (...), of the mean.

    With the share of `proportion` this is exact: afterwards `old` describes the samples of both.
    """
    count, batches, rejected, mean, scatter = old
    step = new.mean - mean
    if new.scatter is not None:
        scatter[...] += new.scatter + squares(step) * (as_real(count, mean) * share)
    mean += step * _column(share)
    count += new.count
    batches += new.batches
    if new.rejected is not None:
        rejected += new.rejected


def proportion(old: Any, new: Any, like: Any) -> Any:
    """The share of `new` in old + new, (...), in the dtype of `like`; 0 where both are 0."""
    return as_real(new, like) / _at_least_one(as_real(old + new, like))


def difference(now: Moments, before: Moments, by: str = "count") -> Moments:
    """What has to be merged into `before` to give `now`.

    The division magnifies the rounding of the means, but merging the result again reduces it by the same factor.
    """
    mine = as_real(getattr(before, by), now.mean)
    more = as_real(getattr(now, by) - getattr(before, by), now.mean)
    some = _at_least_one(more)
    mean = before.mean + (now.mean - before.mean) * _column((mine + more) / some)
    between = squares(mean - before.mean) * (mine * more / _at_least_one(mine + more))
    scatter = (now.scatter - before.scatter - between).clip(min=0.0)
    nothing = as_real(more > 0, now.mean)
    return Moments(
        now.count - before.count,
        now.batches - before.batches,
        now.rejected - before.rejected,
        mean * _column(nothing),
        scatter * nothing,
    )


def shrink_factor(moments: Moments, squares: Squares = squares) -> Any:
    """The James-Stein factor max(0, 1 - s² / (n |mean|²)), (...), where s² is the total variance.

    It is 0 for fewer than two samples and tends to 1.
    """
    xp = namespace(moments.mean)
    count, signal = as_real(moments.count, moments.mean), squares(moments.mean)
    noise = moments.scatter / (_at_least_one(count - 1) * _at_least_one(count))
    known = (count > 1) & (signal > 0)
    return xp.where(known, (1.0 - noise / xp.where(known, signal, 1.0)).clip(min=0.0), 0.0)


def moving_weight(batches: Any, alpha: float, like: Any) -> Any:
    """How much of a moving average comes from data rather than from its zero start, (...): 1 - (1 - alpha)^batches."""
    rate = math.log1p(-alpha) if alpha < 1.0 else -math.inf  # so that it is right for the smallest alpha too
    weight = -namespace(like).expm1(_at_least_one(as_real(batches, like)) * rate)
    return namespace(like).where(weight > 0, weight, 1.0)


# ---- what differs between NumPy and torch


def namespace(array: Any) -> Any:
    """The module that works on an array: numpy, or torch (which is loaded if there is a tensor)."""
    return np if isinstance(array, (np.ndarray, np.generic)) else sys.modules["torch"]


def as_real(count: Any, like: Any) -> Any:
    """Whole numbers in the floating point format of `like`; Python's stay Python's, which is fastest."""
    if isinstance(count, int):
        return float(count)
    return count.to(like.dtype) if hasattr(count, "to") else np.asarray(count, like.dtype)


def _at_least_one(count: Any) -> Any:
    """A count to divide by."""
    return max(count, 1.0) if isinstance(count, float) else count.clip(min=1)


def _any(count: Any) -> Any:
    """1 where there is anything, else 0."""
    return (count > 0) * 1


def _column(values: Any) -> Any:
    """Values of streams, (...), as factors of their vectors, (..., d)."""
    return values if isinstance(values, float) else values[..., None]

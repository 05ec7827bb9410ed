"""Which differences between methods are more than chance, from whether each sample was right.

Two things are random. Images: those that were scored are a sample, also where every seed redraws from the same small
pool, so the same image in several runs or domains is one unit and not several. Runs: a method may depend on its seed
and on the order of the samples. Verdicts are about other images of this kind and other seeds.

- The p-value is that of a score test whose units are images: (sum x)^2 / sum x^2, x being the difference summed over
  all entries of an image. With one entry per image this is McNemar's test. If few images differ, it is the exact test
  that flips the sign of each image's sum (mid-p, as Fagerland, Lydersen & Laake recommend, 2013).
- If runs differ by more than their images explain (`SUSPICIOUS`), the variance between runs is added, and the reference
  is Student's t with Satterthwaite's degrees of freedom.
- The interval is Tango's score interval (1998) for paired proportions, with as many effective samples as the variance
  leaves. It is never empty, stays within -1 and 1, and excludes 0 exactly if the p-value is below 5 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from neotta.errors import InputError

LEVEL = 0.05
"""Probability of a verdict where nothing differs."""
SUSPICIOUS = 0.01
"""Runs whose differences are less probable than this, given their images, differ by themselves."""
VERY_SUSPICIOUS = 1e-4
"""The same for accuracies: a table has hundreds of them, and no correction for their number."""
FEW = 16
"""Number of images up to which the exact test is used."""
_MANY = 1e9
"""Degrees of freedom of a normal distribution."""

Numbers = NDArray[np.float64]
Runs = ArrayLike | Sequence[ArrayLike]
"""(runs, samples), or one sequence per run if they have different lengths."""


class Estimate(NamedTuple):
    """A share and its 95 % interval, over images and, with several runs, over runs."""

    value: float
    low: float
    high: float


class PairedDifference(NamedTuple):
    """How much more often one method is right than another, on the same samples.

    Attributes:
        difference: Share of right answers, first minus second, -1 to 1.
        low: Lower end of the 95 % interval.
        high: Upper end.
        pvalue: Of the hypothesis that they are equally good.
        runs: Number of runs; with a single one, the randomness of the methods is not in the interval.
        images: Number of different images.
        uneven: Whether the runs differ by more than their images explain.
    """

    difference: float
    low: float
    high: float
    pvalue: float
    runs: int
    images: int
    uneven: bool


def difference(
    right_a: Runs, right_b: Runs, groups: Runs | None = None, *, weights: Runs | None = None
) -> PairedDifference:
    """Compare two methods on the same samples.

    Args:
        right_a: Whether each sample was right, (runs, samples).
        right_b: The same for the other method.
        groups: The image behind each entry, an integer: the same one in several runs or domains is one unit. By default
            all entries are different images.
        weights: How much each entry counts; by default all the same.

    Returns:
        The difference with its 95 % interval and p-value.

    Raises:
        InputError: The arrays do not fit together or are empty.
    """
    a, b = _Entries.of(right_a, groups, weights), _Entries.of(right_b, groups, weights)
    if not np.array_equal(a.run, b.run):
        raise InputError("expected two arrays of the same shape (runs, samples), one entry for each sample")
    entries = a._replace(value=a.value - b.value)
    noise = _Noise.of(entries)
    pvalue = _pvalue(entries, noise)
    won = float(entries.weight[entries.value > 0].sum())
    lost = float(entries.weight[entries.value < 0].sum())
    low, high = _tango(won, lost, entries.total, noise, pvalue)
    value = (won - lost) / entries.total
    return PairedDifference(value, low, high, pvalue, entries.runs, entries.images, noise.uneven)


def accuracy(right: Runs, groups: Runs | None = None, *, weights: Runs | None = None) -> Estimate:
    """Share of right answers with its 95 % interval (Wilson's, with the effective number of samples).

    The arguments are those of `difference`.
    """
    entries = _Entries.of(right, groups, weights)
    noise = _Noise.of(entries, VERY_SUSPICIOUS)
    value, count = entries.mean, entries.total / noise.design
    square = _quantile(noise.freedom) ** 2
    middle = (value + square / (2 * count)) / (1 + square / count)
    half = math.sqrt(square * (value * (1 - value) / count + square / (4 * count * count))) / (1 + square / count)
    return Estimate(value, min(value, middle - half), max(value, middle + half))


def holm(pvalues: Sequence[float]) -> list[float]:
    """Correct p-values for their number (Holm, 1979): the chance of any false verdict is then at most the level."""
    order = np.argsort(pvalues, kind="stable")
    scaled = np.asarray(pvalues, dtype=float)[order] * np.arange(len(order), 0, -1)
    adjusted = np.empty(len(order))
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(scaled))
    return [float(value) for value in adjusted]


class _Entries(NamedTuple):
    """All entries one after the other, (N,) each; weights are 1 on average."""

    value: Numbers
    run: NDArray[np.int64]
    image: NDArray[np.int64]
    weight: Numbers
    runs: int
    images: int

    @classmethod
    def of(cls, values: Runs, groups: Runs | None, weights: Runs | None) -> _Entries:
        rows = _rows(values)
        run = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
        if not len(run):
            raise InputError("there are no samples to compare")
        value = np.concatenate(rows).astype(bool).astype(float)
        if groups is None:
            image, images = np.arange(len(run)), len(run)
        else:
            names, image = np.unique(_like(rows, groups, "groups"), return_inverse=True)
            images = len(names)
        weight = np.ones(len(run)) if weights is None else _like(rows, weights, "weights").astype(float)
        return cls(value, run, image, weight / weight.mean(), len(rows), images)

    @property
    def total(self) -> float:
        return float(len(self.value))

    @property
    def mean(self) -> float:
        return float(self.weight @ self.value) / self.total

    def by_image(self, values: Numbers) -> Numbers:
        """Weighted sums over the entries of each image, (images,)."""
        return _sums(self.image, self.weight * values, self.images)


class _Noise(NamedTuple):
    """How far chance can move a mean.

    Attributes:
        design: Variance of the mean relative to that of as many independent samples.
        between: The part of the variance of the mean that comes from the runs themselves.
        freedom: Degrees of freedom.
        uneven: Whether there is such a part.
    """

    design: float
    between: float
    freedom: float
    uneven: bool

    @classmethod
    def of(cls, entries: _Entries, suspicious: float = SUSPICIOUS) -> _Noise:
        residual = entries.value - entries.mean
        within = float((entries.by_image(residual) ** 2).sum())
        alone = float((entries.weight * residual**2).sum())
        between, spread = _between_runs(entries, residual, suspicious)
        # One more sample that differs, in all entries of its image: otherwise few of them would look too certain.
        repeats = float((entries.by_image(np.ones_like(residual)) ** 2).sum()) / entries.total
        design = (within + repeats + between * entries.total**2) / (alone + 1)
        if not between:
            return cls(design, 0.0, _MANY, False)
        variance = within / entries.total**2 + between
        freedom = (entries.runs - 1) * (variance / spread) ** 2
        return cls(design, between, max(freedom, entries.runs - 1.0), True)


def _between_runs(entries: _Entries, residual: Numbers, suspicious: float) -> tuple[float, float]:
    """The variance of the mean that comes from the runs themselves, and the one that runs show in all; 0 if small."""
    from scipy.special import chdtrc

    runs, images = entries.runs, entries.images
    if runs < 2:
        return 0.0, 0.0
    sizes = _sums(entries.run, entries.weight, runs)
    cells = _sums(entries.run * images + entries.image, entries.weight * residual, runs * images)
    cells = cells.reshape(runs, images) / sizes[:, None]
    means, pairs = cells.sum(axis=1), runs * (runs - 1)
    seen = float(runs * (means**2).sum() - means.sum() ** 2) / pairs
    # What images alone explain: those that two runs share cancel out as far as they agree.
    expected = float(runs * (cells**2).sum() - (cells.sum(axis=0) ** 2).sum()) / pairs
    if seen <= expected or chdtrc(runs - 1, (runs - 1) * seen / max(expected, 1e-300)) > suspicious:
        return 0.0, 0.0
    return (seen - expected) / runs, seen / runs


def _pvalue(entries: _Entries, noise: _Noise) -> float:
    from scipy.special import stdtr

    sums = entries.by_image(entries.value)
    sums = sums[np.abs(sums) > 1e-9]
    score = abs(float(sums.sum()))
    if score < 1e-9:
        return 1.0
    variance = float((sums**2).sum()) + noise.between * entries.total**2
    smooth = 2 * float(stdtr(noise.freedom, -score / math.sqrt(variance)))
    if len(sums) > FEW:
        return smooth
    exact = _sign_flips(np.abs(sums), score)
    return max(exact, smooth) if noise.uneven else exact


def _sign_flips(sizes: Numbers, score: float) -> float:
    """Probability of a sum at least this large, one as large counted half, if all signs are coin tosses."""
    sums = np.zeros(1)
    for size in sizes:
        sums = np.concatenate([sums + size, sums - size])
    sums = np.abs(sums)
    return float((sums > score + 1e-9).mean() + (np.abs(sums - score) <= 1e-9).mean() / 2)


def _tango(won: float, lost: float, total: float, noise: _Noise, pvalue: float) -> tuple[float, float]:
    """The differences that a score test does not reject."""
    from scipy.special import stdtrit

    won, lost, total = (count / noise.design for count in (won, lost, total))
    limit = _quantile(noise.freedom)
    if 1e-4 < pvalue < 0.5:  # near 5 % the interval has to say the same as the p-value, which may be of the exact test
        limit *= abs(won - lost) / math.sqrt(won + lost) / -float(stdtrit(noise.freedom, pvalue / 2))

    def beyond(value: float) -> float:
        slope = (2 * total - won + lost) * value - won - lost
        inner = slope * slope + 8 * total * lost * value * (1 - value)
        share = max(0.0, (math.sqrt(max(0.0, inner)) - slope) / (4 * total))
        variance = total * (2 * share + value * (1 - value))
        return (won - lost - total * value) ** 2 - limit * limit * max(0.0, variance)

    middle = (won - lost) / total
    return _root(beyond, middle, -1.0), _root(beyond, middle, 1.0)


def _root(function: Callable[[float], float], inside: float, outside: float) -> float:
    """Where a function becomes positive between two places; the outer one if it never does."""
    if function(outside) <= 0:
        return outside
    for _ in range(60):
        middle = (inside + outside) / 2
        inside, outside = (inside, middle) if function(middle) > 0 else (middle, outside)
    return (inside + outside) / 2


def _sums(place: NDArray[np.int64], values: Numbers, places: int) -> Numbers:
    return np.asarray(np.bincount(place, values, places), dtype=np.float64)


def _quantile(freedom: float) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 1 - LEVEL / 2))


def _rows(values: Runs) -> list[NDArray[Any]]:
    """The runs of an array, or of a list of runs; one dimension is one run."""
    if isinstance(values, np.ndarray):
        return list(np.atleast_2d(values))
    parts = [np.asarray(part) for part in values]  # type: ignore[union-attr]
    return parts if parts and parts[0].ndim else [np.asarray(parts)]


def _like(rows: Sequence[NDArray[Any]], given: Runs, name: str) -> NDArray[Any]:
    found = _rows(given)
    if [len(row) for row in found] != [len(row) for row in rows]:
        raise InputError(f"{name} must have the shape of the answers, one entry for each sample")
    return np.concatenate(found)

"""Which differences between methods are more than chance, from whether each sample was right.

Two things are random. Images: those that were scored are a sample, also where every seed redraws from the same small
pool, so the same image (or group of near-duplicates) in several runs or domains is one unit and not several. Runs: a
method may depend on its seed and on the order of the samples. Verdicts are about other images of this kind and other
seeds.

- The variance of a mean is that over units, plus from two runs on that between runs: by how much the runs of a domain
  vary more than their units explain (`run_spread`). This is averaged over domains, so that two seeds on 15 domains
  give 15 degrees of freedom, and on one domain a single one. It is 0 if runs vary less than expected, and there is no
  test whether it is needed.
- The p-value is that of a score test: (sum x)^2 / sum x^2, x being the difference summed over all entries of a unit.
  With one run and one entry per unit this is McNemar's test. If few units differ, it is the exact test that flips the
  sign of each unit's sum (mid-p, as Fagerland, Lydersen & Laake recommend, 2013). With the part between runs, the
  reference is Student's t with Satterthwaite's degrees of freedom; with two runs, those of the part between them.
- The interval is Tango's score interval (1998) for paired proportions, with as many effective samples as the variance
  leaves. It is never empty, stays within -1 and 1, and excludes 0 exactly if the p-value is below the level.
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
FEW = 16
"""Number of units up to which the exact test is used."""
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
        low: Lower end of the interval.
        high: Upper end.
        pvalue: p-value of the hypothesis that they are equally good.
        runs: Number of runs; with a single one, the randomness of the methods is not in the interval.
        units: Number of different images, or groups of them.
    """

    difference: float
    low: float
    high: float
    pvalue: float
    runs: int
    units: int


class RunSpread(NamedTuple):
    """How much the means of single runs vary.

    Attributes:
        excess: Variance between the runs of a domain beyond what their units explain.
        seen: Variance between the runs of a domain.
        freedom: Degrees of freedom of `seen`.
        runs: Number of runs of a domain, of the domain with the fewest; 1 if there is nothing to estimate from.
    """

    excess: float = 0.0
    seen: float = 0.0
    freedom: float = _MANY
    runs: int = 1


def difference(
    right_a: Runs,
    right_b: Runs,
    groups: Runs | None = None,
    *,
    domains: Sequence[int] | None = None,
    weights: Runs | None = None,
    spread: RunSpread | None = None,
    level: float = LEVEL,
) -> PairedDifference:
    """Compare two methods on the same samples.

    Args:
        right_a: Whether each sample was right, (runs, samples).
        right_b: Whether each sample was right with the other method, (runs, samples).
        groups: The image, or group of images, behind each entry, an integer: the same one in several runs or domains
            is one unit. By default all entries are different images.
        domains: The domain of each run; by default all have the same.
        weights: How much each entry counts; by default all the same.
        spread: How much runs vary, if it was estimated from more domains than these.
        level: One minus the coverage of the interval.

    Returns:
        The difference with its interval and p-value.

    Raises:
        InputError: The arrays do not fit together or are empty.
    """
    first, second = _rows(right_a), _rows(right_b)
    if list(map(len, first)) != list(map(len, second)):
        raise InputError("expected two arrays of the same shape (runs, samples), one entry for each sample")
    gaps = [one.astype(bool).astype(float) - other.astype(bool) for one, other in zip(first, second, strict=True)]
    entries = _Entries.of(gaps, groups, weights)
    noise = _Noise.of(entries, spread or _spread(entries, domains))
    pvalue = _pvalue(entries, noise)
    won = float(entries.weight[entries.value > 0].sum())
    lost = float(entries.weight[entries.value < 0].sum())
    low, high = _tango(won, lost, entries.total, noise, pvalue, level)
    return PairedDifference((won - lost) / entries.total, low, high, pvalue, entries.runs, entries.units)


def accuracy(
    right: Runs,
    groups: Runs | None = None,
    *,
    domains: Sequence[int] | None = None,
    weights: Runs | None = None,
    spread: RunSpread | None = None,
) -> Estimate:
    """Share of right answers with its 95 % interval (Wilson's, with the effective number of samples).

    The arguments are those of `difference`.
    """
    entries = _Entries.of([row.astype(bool).astype(float) for row in _rows(right)], groups, weights)
    noise = _Noise.of(entries, spread or _spread(entries, domains))
    value, count = float(entries.weight @ entries.value) / entries.total, entries.total / noise.design
    square = _quantile(noise.freedom, LEVEL) ** 2
    middle = (value + square / (2 * count)) / (1 + square / count)
    half = math.sqrt(square * (value * (1 - value) / count + square / (4 * count * count))) / (1 + square / count)
    return Estimate(value, min(value, middle - half), max(value, middle + half))


def run_spread(values: Runs, groups: Runs | None = None, domains: Sequence[int] | None = None) -> RunSpread:
    """How much runs vary beyond their images, averaged over domains.

    Args:
        values: Right (1) or wrong (0), or the differences of two methods, (runs, samples).
        groups: The image, or group of images, behind each entry.
        domains: The domain of each run; by default all have the same.
    """
    return _spread(_Entries.of([row.astype(float) for row in _rows(values)], groups, None), domains)


def holm(pvalues: Sequence[float]) -> list[float]:
    """The level of each of several tests (Holm, 1979): the chance of any false verdict is then at most `LEVEL`.

    A p-value below its level is a verdict, and an interval at this level says the same. The levels of what is no
    verdict are all that of the first test to fail.
    """
    order = np.argsort(pvalues, kind="stable")
    steps = LEVEL / np.arange(len(order), 0, -1)
    failed = np.flatnonzero(np.asarray(pvalues, dtype=float)[order] >= steps)
    if len(failed):
        steps[failed[0] :] = steps[failed[0]]
    levels = np.empty(len(order))
    levels[order] = steps
    return [float(level) for level in levels]


class _Entries(NamedTuple):
    """All entries one after the other, (N,) each; weights are 1 on average."""

    value: Numbers
    run: NDArray[np.int64]
    unit: NDArray[np.int64]
    weight: Numbers
    runs: int
    units: int

    @classmethod
    def of(cls, rows: Sequence[Numbers], groups: Runs | None, weights: Runs | None) -> _Entries:
        run = np.repeat(np.arange(len(rows)), [len(each) for each in rows])
        if not len(run):
            raise InputError("there are no samples to compare")
        unit = np.arange(len(run)) if groups is None else _numbered(_like(rows, groups, "groups"))
        weight = np.ones(len(run)) if weights is None else _like(rows, weights, "weights").astype(float)
        return cls(np.concatenate(rows), run, unit, weight / weight.mean(), len(rows), int(unit.max()) + 1)

    @property
    def total(self) -> float:
        return float(len(self.value))

    def by_unit(self, values: Numbers) -> Numbers:
        """Weighted sums over the entries of each unit, (units,)."""
        return _sums(self.unit, self.weight * values)


class _Noise(NamedTuple):
    """How far chance can move a mean.

    Attributes:
        design: Variance of the mean relative to that of as many independent samples.
        units: The same without the part that comes from the runs.
        between: The part of the variance of the mean that comes from the runs themselves.
        freedom: Degrees of freedom.
        several: Whether there are several runs of a domain.
    """

    design: float
    units: float
    between: float
    freedom: float
    several: bool

    @classmethod
    def of(cls, entries: _Entries, spread: RunSpread) -> _Noise:
        residual = entries.value - float(entries.weight @ entries.value) / entries.total
        within = float((entries.by_unit(residual) ** 2).sum())
        alone = float((entries.weight * residual**2).sum())
        shares = _sums(entries.run, entries.weight) / entries.total
        kept = float((shares**2).sum())  # of the variance of a single run, in the mean of all
        between, seen = kept * spread.excess, kept * spread.seen
        # One more sample that differs, in all entries of its unit: otherwise few of them would look too certain.
        repeats = float((entries.by_unit(np.ones_like(residual)) ** 2).sum()) / entries.total
        units = (within + repeats) / (alone + 1)
        design = units + between * entries.total**2 / (alone + 1)
        # Satterthwaite: only the variance between runs is uncertain, and no more so than that of the runs alone. Two
        # runs may agree by luck: the ratio would explode just where their variance comes out too small.
        variance, freedom = within / entries.total**2 + between, spread.freedom
        if spread.runs > 2:
            freedom *= max(1.0, variance / seen) ** 2 if seen else _MANY
        return cls(design, units, between, min(freedom, _MANY), spread.runs > 1)


def _spread(entries: _Entries, domains: Sequence[int] | None) -> RunSpread:
    domain = np.zeros(entries.runs, dtype=np.int64) if domains is None else np.asarray(domains)
    measured = []
    for name in np.unique(domain):
        here = (domain == name)[entries.run]
        run, unit, value = _numbered(entries.run[here]), _numbered(entries.unit[here]), entries.value[here]
        if (runs := int(run.max(initial=0)) + 1) < 2:
            continue
        part = (value - value.mean()) / _sums(run, np.ones_like(value))[run]
        means, units, cells = (_sums(place, part) for place in (run, unit, _numbered(run * len(value) + unit)))
        seen = runs * (means**2).sum() - means.sum() ** 2
        # What units alone explain: those that two runs share cancel out as far as they agree.
        expected = runs * (cells**2).sum() - (units**2).sum()
        measured.append((seen / runs / (runs - 1), expected / runs / (runs - 1), runs - 1))
    if not measured:
        return RunSpread()
    seen, expected, free = np.array(measured).T
    # Welch's degrees of freedom of a sum of variances, without bias: about those of one domain if only that varies.
    freedom = seen.sum() ** 2 / max(1e-300, (seen**2 / (free + 2)).sum()) - 2
    freedom = min(max(float(freedom), float(free.min())), float(free.sum()))
    excess, runs = max(0.0, float((seen - expected).mean())), 1 + int(free.min())
    answers_vary = bool((seen + expected).max() > 0)  # those of a method without randomness on the same images do not
    return RunSpread(excess, float(seen.mean()), freedom if answers_vary else _MANY, runs)


def _pvalue(entries: _Entries, noise: _Noise) -> float:
    from scipy.special import stdtr

    sums = entries.by_unit(entries.value)
    sums = sums[np.abs(sums) > 1e-9]
    score = abs(float(sums.sum()))
    if score < 1e-9:
        return 1.0
    variance = float((sums**2).sum()) + noise.between * entries.total**2
    smooth = 2 * float(stdtr(noise.freedom, -score / math.sqrt(variance)))
    if len(sums) > FEW:
        return smooth
    exact = _sign_flips(np.abs(sums), score)
    return max(exact, smooth) if noise.several else exact


def _sign_flips(sizes: Numbers, score: float) -> float:
    """Probability of a sum at least this large, one as large counted half, if all signs are coin tosses."""
    sums = np.zeros(1)
    for size in sizes:
        sums = np.concatenate([sums + size, sums - size])
    sums = np.abs(sums)
    return float((sums > score + 1e-9).mean() + (np.abs(sums - score) <= 1e-9).mean() / 2)


def _tango(won: float, lost: float, total: float, noise: _Noise, pvalue: float, level: float) -> tuple[float, float]:
    """The differences that a score test does not reject."""
    from scipy.special import stdtrit

    won, lost, total = (count / noise.units for count in (won, lost, total))
    between = noise.between * total**2
    limit = _quantile(noise.freedom, level)
    if level / 500 < pvalue < 0.5:  # near the level it has to say the same as the p-value, maybe of the exact test
        limit *= abs(won - lost) / math.sqrt(won + lost + between) / -float(stdtrit(noise.freedom, pvalue / 2))

    def beyond(value: float) -> float:
        slope = (2 * total - won + lost) * value - won - lost
        inner = slope * slope + 8 * total * lost * value * (1 - value)
        share = max(0.0, (math.sqrt(max(0.0, inner)) - slope) / (4 * total))
        variance = between + total * (2 * share + value * (1 - value))
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


def _sums(place: NDArray[np.int64], values: Numbers) -> Numbers:
    return np.asarray(np.bincount(place, values), dtype=np.float64)


def _numbered(names: NDArray[Any]) -> NDArray[np.int64]:
    """The place of each name among the different ones."""
    return np.asarray(np.unique(names, return_inverse=True)[1], dtype=np.int64)


def _quantile(freedom: float, level: float) -> float:
    from scipy.special import stdtrit

    return -float(stdtrit(freedom, level / 2))


def _rows(values: Runs) -> list[NDArray[Any]]:
    """The runs of an array, or of a list of runs; one dimension is one run."""
    if isinstance(values, np.ndarray):
        return list(np.atleast_2d(values))
    parts = [np.asarray(part) for part in values]  # type: ignore[union-attr]
    return parts if parts and parts[0].ndim else [np.asarray(parts)]


def _like(rows: Sequence[NDArray[Any]], values: Runs, name: str) -> NDArray[Any]:
    arrays = _rows(values)
    if [len(row) for row in arrays] != [len(row) for row in rows]:
        raise InputError(f"{name} must have the shape of the answers, one entry for each sample")
    return np.concatenate(arrays)

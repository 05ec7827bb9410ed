"""From the rows of a frame to a mean with its interval, or to a paired difference with its verdict.

Accuracies are compared image by image, see `neotta.evaluate.statistics`; calibration errors, NLL and Brier scores by
drawing images again. Other metrics have one number per run: they are compared over seeds, with the variance corrected
for the images that seeds share. A verdict is what an interval says: it excludes 0 or not. There is neither where it is
not known which samples were right, as in records of older versions, nor where a single state was scored on images that
it did not adapt to: another seed has another state.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from neotta.data.drawing import Indices
from neotta.evaluate import statistics
from neotta.evaluate.metrics import BINS, CANNOT_TELL, Interval, interval, rounded, verdict
from neotta.evaluate.statistics import RunSpread

Key = TypeVar("Key")


class Metric(NamedTuple):
    """A column of the frame, and how to read it."""

    name: str
    title: str  # in tables
    # which direction is good; None where neither is (a confident model may be wrong)
    better: Literal["higher", "lower"] | None
    digits: int  # number of decimals shown
    highest: float = math.inf  # its largest value; the smallest is 0

    def text(self, estimate: Interval, sign: str = "") -> str:
        """`81.2 ± 0.4`, or `+1.2 [+0.1, +2.4]` for a difference; the mean alone without an interval, – for no run."""
        if not estimate.runs:
            return "–"
        low, high = estimate.ends
        few = high - low >= self.highest  # any value will do
        return f"{rounded(estimate.mean, self.digits, sign)} (too few)" if few else estimate.text(self.digits, sign)


METRICS = {
    metric.name: metric
    for metric in (
        Metric("top1", "top-1 accuracy in %", "higher", 1, 100),
        Metric("top5", "top-5 accuracy in %", "higher", 1, 100),
        Metric("ece", "expected calibration error", "lower", 3, 1),
        Metric("ece_equal_mass", "expected calibration error, bins of equal mass", "lower", 3, 1),
        Metric("nll", "negative log-likelihood in nats", "lower", 3),
        Metric("brier", "Brier score", "lower", 3, 2),
        Metric("entropy", "entropy in nats", None, 3),
        Metric("confidence", "confidence", None, 3, 1),
    )
}

FEWEST = 30
"""Fewer answers say too little for an interval: any value is possible."""
Runs = Sequence[Sequence[Any]]
"""For each run its rows in one or more domains, which are averaged."""
Pairs = Sequence[Sequence[tuple[Any, Any]]]
"""For each run and domain the rows of two methods."""


class Difference(NamedTuple):
    """A method minus the baseline on the same samples."""

    interval: Interval  # mean difference and its interval, of 95 % unless it is one of several (see `differences`)
    verdict: str | None  # see `neotta.evaluate.metrics.verdict`; None without a difference
    pvalue: float = math.nan  # p-value of the hypothesis that both are equally good; NaN if it cannot be tested


def mean_of(runs: Runs, metric: Metric, spread: RunSpread | None = None) -> Interval:
    """The mean over domains, then over runs, with its interval."""
    numbers = [fmean([getattr(row, metric.name) for row in run]) for run in runs]
    if _one_state(runs):
        return Interval(fmean(numbers), math.nan, 1)
    if _few(runs):
        return Interval.between(fmean(numbers), 0.0, metric.highest, len(runs))
    rows = _rows(runs) if metric.name == "top1" else None
    if rows is None:
        found = bootstrapped([[(row, None) for row in run] for run in runs], numbers, metric)
        estimate = found[0] if found else interval(numbers, shared(runs))
        return estimate.within(metric.highest)
    _, low, high = statistics.accuracy(rows.right, rows.unit, domains=rows.domain, weights=rows.weight, spread=spread)
    return Interval.between(fmean(numbers), 100 * low, 100 * high, len(runs)).within(metric.highest)


def means_of(runs: Mapping[Key, Runs], metric: Metric) -> dict[Key, Interval]:
    """The means of a method in several domains; how much its runs vary is estimated from all of them."""
    by_domain = [_rows(each) for each in runs.values()] if metric.name == "top1" else []
    spread = _spread(by_domain, [rows and rows.right for rows in by_domain])
    return {domain: mean_of(each, metric, spread) for domain, each in runs.items()}


def difference_of(
    pairs: Pairs, metric: Metric, spread: RunSpread | None = None, level: float = statistics.LEVEL
) -> Difference:
    """The difference between two methods, run by run and domain by domain on the same images."""
    gaps = [fmean([getattr(one, metric.name) - getattr(other, metric.name) for one, other in run]) for run in pairs]
    ours = [[one for one, _ in run] for run in pairs]
    if _one_state(ours):
        return Difference(Interval(fmean(gaps), math.nan, 1), CANNOT_TELL)
    if _few(ours):
        return Difference(Interval.between(fmean(gaps), -metric.highest, metric.highest, len(gaps)), CANNOT_TELL)
    rows = _paired(pairs) if metric.name == "top1" else None
    if rows is None:
        estimate, pvalue = bootstrapped(pairs, gaps, metric, level) or _by_runs(gaps, shared(ours), level)
        return Difference(estimate, verdict(estimate, better=metric.better), pvalue)
    mine, theirs = rows
    found = statistics.difference(
        mine.right, theirs.right, mine.unit, domains=mine.domain, weights=mine.weight, spread=spread, level=level
    )
    estimate = Interval.between(fmean(gaps), 100 * found.low, 100 * found.high, len(gaps))
    return Difference(estimate, verdict(estimate, better=metric.better), found.pvalue)


def differences_of(pairs: Mapping[Key, Pairs], metric: Metric) -> dict[Key, Difference]:
    """The differences in several domains.

    How much runs vary is estimated from all domains. Intervals, and so verdicts, are corrected for the number of
    domains (Holm): the chance that any of them is false is at most 5 %.
    """
    by_domain = [_paired(each) for each in pairs.values()] if metric.name == "top1" else []
    gaps = [rows and [a.astype(float) - b for a, b in zip(*(each.right for each in rows), strict=True)]
            for rows in by_domain]  # fmt: skip
    spread = _spread([rows and rows[0] for rows in by_domain], gaps)
    alone = {domain: difference_of(each, metric, spread) for domain, each in pairs.items()}
    tested = [domain for domain, gap in alone.items() if not math.isnan(gap.pvalue)]
    levels = dict(zip(tested, statistics.holm([alone[domain].pvalue for domain in tested]), strict=True))
    return {domain: difference_of(pairs[domain], metric, spread, levels[domain]) if domain in levels else gap
            for domain, gap in alone.items()}  # fmt: skip


RESAMPLED = 200
"""How often images are drawn again."""


def bootstrapped(
    pairs: Sequence[Sequence[tuple[Any, Any | None]]],
    numbers: Sequence[float],
    metric: Metric,
    level: float = statistics.LEVEL,
) -> tuple[Interval, float] | None:
    """The interval and p-value of a mean over runs, by drawing images again: calibration errors, NLL and Brier scores.

    An image (or group) that is in several runs or domains is drawn in all of them, and a difference on the same images.
    From two runs on, what runs vary beyond that is added, as for accuracies. None where it is not known how sure the
    answers were.
    """
    rows = [row for run in pairs for pair in run for row in pair if row is not None]
    needed = {"ece": "confidence", "ece_equal_mass": "confidence"}.get(metric.name, metric.name)
    if metric.name not in BY_IMAGE or any(row.answers is None or needed not in row.answers.sure for row in rows):
        return None
    from scipy.special import stdtr, stdtrit

    units, random = np.unique(np.concatenate([row.answers.unit for row in rows])), np.random.default_rng(0)
    terms = [[[_Terms.of(row, units, metric) for row in pair if row is not None] for pair in run] for run in pairs]
    drawn = np.empty((RESAMPLED, len(pairs)))
    for each in drawn:
        weight = np.bincount(random.integers(len(units), size=len(units)), minlength=len(units)).astype(float)
        for place, run in enumerate(terms):
            scores = [[one.score(weight) for one in pair] for pair in run]
            each[place] = fmean(pair[0] - (pair[1] if len(pair) > 1 else 0.0) for pair in scores)
    count, mean = len(pairs), fmean(numbers)
    variance, freedom = float(drawn.mean(axis=1).var(ddof=1)), math.inf
    if count > 1:
        seen = float(np.var(numbers, ddof=1))
        excess = max(0.0, seen - float((drawn - drawn.mean(axis=0)).var(axis=1, ddof=1).mean()))
        variance += excess / count
        if seen:  # two runs may agree by luck, see `neotta.evaluate.statistics`
            freedom = (count - 1) * (max(1.0, variance * count / seen) ** 2 if count > 2 else 1.0)
    if not variance:
        return Interval(mean, math.nan, count), math.nan
    error, freedom = math.sqrt(variance), min(freedom, 1e9)
    half = -float(stdtrit(freedom, level / 2)) * error
    return Interval(mean, half, count), 2 * float(stdtr(freedom, -abs(mean) / error))


BY_IMAGE = ("ece", "ece_equal_mass", "nll", "brier")
"""Metrics that are made from terms of single images, beside accuracy."""


class _Terms(NamedTuple):
    """What a score is made of, for each sample: its term, its bin, and the place of its unit."""

    term: NDArray[np.float64]
    bins: Indices | None  # None for a plain mean
    place: Indices

    @classmethod
    def of(cls, row: Any, units: Indices, metric: Metric) -> _Terms:
        answers, place = row.answers, np.searchsorted(units, row.answers.unit)
        if metric.name in answers.sure:
            return cls(answers.sure[metric.name], None, place)
        confidence = answers.sure["confidence"]
        bins = np.maximum(np.ceil(confidence * BINS - 1e-9) - 1, 0).astype(np.int64)
        if metric.name == "ece_equal_mass":
            order = np.argsort(confidence, kind="stable")
            bins[order] = np.concatenate([np.full(len(part), n) for n, part in enumerate(np.array_split(order, BINS))])
        return cls(confidence - answers.right, bins, place)

    def score(self, weight: NDArray[np.float64]) -> float:
        mine = weight[self.place]
        total = float(mine.sum()) or 1.0
        if self.bins is None:
            return float(mine @ self.term) / total
        return float(np.abs(np.bincount(self.bins, mine * self.term, minlength=BINS)).sum()) / total


def shared(runs: Runs) -> float:
    """The share of images that two runs have in common, on average; NaN if it is not known."""
    answers = [[value.answers for value in run if value.answers is not None] for run in runs]
    if len(runs) < 2 or any(len(have) < len(run) for have, run in zip(answers, runs, strict=True)):
        return math.nan
    units = [set[int]().union(*(part.units for part in run)) for run in answers]
    pairs = list(itertools.combinations(units, 2))
    return fmean([len(one & other) / max(1, min(len(one), len(other))) for one, other in pairs])


class _Rows(NamedTuple):
    """Answers by run, those of each domain in the order of the images."""

    right: list[NDArray[np.bool_]]  # whether each sample was right
    image: list[Indices]  # the image behind it
    unit: list[Indices]
    weight: list[NDArray[np.float64]]  # every domain counts the same within a seed, and every seed the same
    domain: list[int]  # the domain of each run
    through: bool  # whether a run goes through several domains, so that those of a seed are not independent


def _rows(runs: Runs) -> _Rows | None:
    through = any(value.answers is not None and len(value.answers.domains) > 1 for run in runs for value in run)
    rows = _Rows([], [], [], [], [], through)
    for run in runs:
        parts = [value.answers for value in run if value.answers is not None]
        if len(parts) < len(run):
            return None
        for place, together in enumerate([parts] if through else [[part] for part in parts]):
            orders = [np.argsort(part.image, kind="stable") for part in together]
            for column in ("right", "image", "unit"):
                sorted_parts = [getattr(part, column)[order] for part, order in zip(together, orders, strict=True)]
                getattr(rows, column).append(np.concatenate(sorted_parts))
            rows.weight.append(np.concatenate([np.full(len(each), 1 / len(each) / len(run)) for each in orders]))
            rows.domain.append(place)
    return rows


def _paired(pairs: Pairs) -> tuple[_Rows, _Rows] | None:
    mine, theirs = (_rows([[pair[which] for pair in run] for run in pairs]) for which in (0, 1))
    if mine is None or theirs is None or len(mine.image) != len(theirs.image):
        return None
    alike = all(np.array_equal(one, other) for one, other in zip(mine.image, theirs.image, strict=True))
    return (mine, theirs) if alike else None


def _spread(by_domain: Sequence[_Rows | None], values: Sequence[list[Any] | None]) -> RunSpread | None:
    known = [(rows, each) for rows, each in zip(by_domain, values, strict=True) if rows is not None and each]
    if len(known) < len(by_domain) or len(known) < 2:
        return None
    spread = statistics.run_spread(
        [row for _, each in known for row in each],
        [row for rows, _ in known for row in rows.unit],
        [place for place, (_, each) in enumerate(known) for _ in each],
    )
    seeds = min(len(each) for _, each in known)
    return spread._replace(freedom=min(spread.freedom, seeds - 1)) if known[0][0].through and seeds > 1 else spread


def _few(runs: Runs) -> bool:
    answers = [value.answers for run in runs for value in run]
    return all(each is not None for each in answers) and sum(len(each.right) for each in answers) < FEWEST


def _one_state(runs: Runs) -> bool:
    return len(runs) == 1 and any(value.held_out for value in runs[0])


def _by_runs(values: list[float], shared: float, level: float) -> tuple[Interval, float]:
    """The interval and p-value of a mean over runs."""
    from scipy.special import stdtr, stdtrit

    estimate = interval(values, shared, level)
    if math.isnan(estimate.half_width):
        return estimate, math.nan
    error = estimate.half_width / -float(stdtrit(estimate.runs - 1, level / 2))
    return estimate, 2 * float(stdtr(estimate.runs - 1, -abs(estimate.mean) / error))

"""From the values of runs to means with intervals, and to differences with verdicts.

Accuracies are compared image by image, see `neotta.evaluate.statistics`. Other metrics have one number per run: they
are compared over seeds, with the variance corrected for the images that seeds share. Where it is not known which
samples were right, as in records of older versions, there is no interval and no verdict.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from neotta.data.drawing import Indices
from neotta.evaluate import statistics
from neotta.evaluate.answers import Answers
from neotta.evaluate.metrics import Interval, interval

CANNOT_TELL = "can't tell"
Key = TypeVar("Key")


class Metric(NamedTuple):
    """A number in the records, and how to read it.

    Attributes:
        name: Its name in a record.
        title: What to call it.
        better: Which direction is good; None where neither is (a confident model may be wrong).
        digits: Number of decimals shown.
    """

    name: str
    title: str
    better: Literal["higher", "lower"] | None
    digits: int


METRICS = {
    metric.name: metric
    for metric in (
        Metric("top1", "top-1 accuracy in %", "higher", 1),
        Metric("top5", "top-5 accuracy in %", "higher", 1),
        Metric("ece", "expected calibration error", "lower", 3),
        Metric("nll", "negative log-likelihood in nats", "lower", 3),
        Metric("entropy", "entropy in nats", None, 3),
        Metric("confidence", "confidence", None, 3),
    )
}
RELATIVE_ERROR = Metric("relative error", "error relative to the baseline's in %", "lower", 1)


class Value(NamedTuple):
    """What one run measured in one domain, on which samples, and its answers if they are recorded."""

    number: float
    samples: tuple[Any, ...]
    answers: Answers | None = None


Runs = Sequence[Sequence[Value]]
"""For each run its values in one or more domains, which are averaged."""
Pairs = Sequence[Sequence[tuple[Value, Value]]]
"""For each run and domain the values of two methods."""


class Difference(NamedTuple):
    """A method minus the baseline on the same samples.

    Attributes:
        interval: Mean difference and its 95 % interval.
        verdict: `helps`, `hurts` or `can't tell`; for a metric without a good direction `higher` or `lower`.
        pvalue: Of the hypothesis that both are equally good; NaN if it cannot be tested.
        uneven: Whether seeds differ by more than their images explain.
    """

    interval: Interval
    verdict: str
    pvalue: float = math.nan
    uneven: bool = False


def mean_of(runs: Runs, metric: Metric) -> Interval:
    """The mean over domains, then over runs, with its interval."""
    numbers = [_mean([value.number for value in run]) for run in runs]
    answers = _answers(runs) if metric.name == "top1" else None
    if answers is None:
        return interval(numbers, shared(runs))
    right = [np.concatenate([part.right for part in run]) for run in answers]
    images = [np.concatenate([part.image for part in run]) for run in answers]
    found = statistics.accuracy(right, images, weights=_weights(answers))
    half = 100 * max(found.high - found.value, found.value - found.low)
    return Interval(_mean(numbers), half, len(runs))


def gap_of(pairs: Pairs, metric: Metric) -> Difference:
    """The difference between two methods, run by run and domain by domain on the same images."""
    gaps = [_mean([one.number - other.number for one, other in run]) for run in pairs]
    by_image = _by_image(pairs) if metric.name == "top1" else None
    if by_image is None:
        found = interval(gaps, shared([[one for one, _ in run] for run in pairs]))
        pvalue = _student(found)
        return Difference(found, _verdict(found.mean, pvalue, metric), pvalue)
    mean, low, high = _mean(gaps), 100 * by_image.low, 100 * by_image.high
    found = Interval(mean, max(high - mean, mean - low), len(gaps), low, high)
    return Difference(found, _verdict(mean, by_image.pvalue, metric), by_image.pvalue, by_image.uneven)


def corrected(gaps: Mapping[Key, Difference], metric: Metric) -> dict[Key, Difference]:
    """Verdicts on several domains, corrected for their number (Holm); the intervals stay those of each alone."""
    tested = {place: gap for place, gap in gaps.items() if not math.isnan(gap.pvalue)}
    adjusted = dict(zip(tested, statistics.holm([gap.pvalue for gap in tested.values()]), strict=True))
    return {
        place: gap._replace(verdict=_verdict(gap.interval.mean, adjusted.get(place, math.nan), metric))
        for place, gap in gaps.items()
    }


def shared(runs: Runs) -> float:
    """The share of images that two runs have in common, on average; NaN if it is not known."""
    answers = _answers(runs)
    if answers is None or len(answers) < 2:
        return math.nan
    images = [set[int]().union(*(part.images for part in run)) for run in answers]
    pairs = list(itertools.combinations(images, 2))
    return _mean([len(one & other) / max(1, min(len(one), len(other))) for one, other in pairs])


def _answers(runs: Runs) -> list[list[Answers]] | None:
    """The answers of all values; None if one is missing."""
    found = [[value.answers for value in run if value.answers is not None] for run in runs]
    complete = all(len(have) == len(run) for have, run in zip(found, runs, strict=True))
    return found if complete and found else None


def _by_image(pairs: Pairs) -> statistics.PairedDifference | None:
    """Compare answers image by image; None if answers are missing or were given to different images."""
    mine, theirs = (_answers([[pair[which] for pair in run] for run in pairs]) for which in (0, 1))
    if mine is None or theirs is None:
        return None
    right_a, right_b, images = [], [], []
    for one_run, other_run in zip(mine, theirs, strict=True):
        first, second = (_sorted_by_image(run) for run in (one_run, other_run))
        if not np.array_equal(first[1], second[1]):
            return None
        right_a.append(first[0])
        right_b.append(second[0])
        images.append(first[1])
    return statistics.difference(right_a, right_b, images, weights=_weights(mine))


def _sorted_by_image(run: Sequence[Answers]) -> tuple[NDArray[np.bool_], Indices]:
    """Whether each was right, and the images, (N,): domain by domain, the images of each in a fixed order."""
    orders = [np.argsort(part.image, kind="stable") for part in run]
    right = [part.right[order] for part, order in zip(run, orders, strict=True)]
    images = [part.image[order] for part, order in zip(run, orders, strict=True)]
    return np.concatenate(right), np.concatenate(images)


def _weights(answers: Sequence[Sequence[Answers]]) -> list[NDArray[np.float64]]:
    """Every domain counts the same within a run, and every run the same."""
    sizes = [[len(part.right) for part in run] for run in answers]
    return [np.concatenate([np.full(size, 1 / size / len(run)) for size in run]) for run in sizes]


def _student(found: Interval) -> float:
    """The p-value that belongs to an interval over seeds."""
    from scipy.special import stdtr, stdtrit

    if math.isnan(found.half_width):
        return math.nan
    error = found.half_width / float(stdtrit(found.runs - 1, 0.975))
    return 2 * float(stdtr(found.runs - 1, -abs(found.mean) / error))


def _verdict(mean: float, pvalue: float, metric: Metric) -> str:
    if not pvalue < statistics.LEVEL:
        return CANNOT_TELL
    if metric.better is None:
        return "higher" if mean > 0 else "lower"
    return "helps" if (mean > 0) == (metric.better == "higher") else "hurts"


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)

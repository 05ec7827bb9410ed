"""From predictions to the numbers in a record, and from repeated runs to intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from neotta.evaluate.answers import PredictionStats, RunResult

BINS = 15
CANNOT_TELL = "can't tell"


class Reliability(NamedTuple):
    """Confidence against accuracy, bin by bin."""

    samples: Tensor  # samples per bin, (bins,). A bin excludes its lower edge and includes its upper one
    confidence: Tensor  # mean confidence per bin, (bins,); 0 for an empty bin
    accuracy: Tensor  # share of correct predictions per bin, (bins,); 0 for an empty bin

    @classmethod
    def of(cls, confidence: Tensor, correct: Tensor, bins: int = BINS, *, equal_mass: bool = False) -> Reliability:
        """Compute it from the confidence of each prediction and whether it is correct, (N,) each.

        Bins have equal widths, or hold equal numbers of samples.
        """
        if equal_mass:
            order = confidence.argsort(stable=True)
            parts = [part for part in torch.tensor_split(order, bins) if len(part)]
            sure, right = (
                torch.stack([values[part].double().mean() for part in parts]) for values in (confidence, correct)
            )
            return cls(torch.tensor([len(part) for part in parts]), sure, right)
        # The edges are rounded to the dtype of the confidences, so that one that equals an edge falls where it belongs.
        edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64).to(confidence.dtype)
        where = torch.bucketize(confidence, edges[1:].contiguous()).clamp(max=bins - 1)
        inside = confidence > 0
        where, correct = where[inside], correct[inside].double()
        count = torch.bincount(where, minlength=bins)
        sums = torch.zeros(2, bins, dtype=torch.float64)
        sums[0].index_add_(0, where, confidence[inside].double())
        sums[1].index_add_(0, where, correct)
        means = sums / count.clamp(min=1)
        return cls(count, means[0], means[1])

    def error(self) -> float:
        """The expected calibration error, from 0 to 1."""
        total = int(self.samples.sum())
        if total == 0:
            return math.nan
        return float((self.samples * (self.confidence - self.accuracy).abs()).sum()) / total


def score(result: RunResult, domains: Sequence[str] = ()) -> dict[str, Any]:
    """Compute all entries of a record that follow from predictions, of several domains also apart; some need labels."""
    stats = result.stats
    record: dict[str, Any] = {
        "count": len(stats.labels),
        "unreadable": result.unreadable,
        "not_adapted": result.not_adapted,
        "metrics": metrics(stats),
    }
    known = stats.labelled()
    if len(known.labels):
        curve = Reliability.of(known.confidence, known.predicted == known.labels)._asdict()
        record["reliability"] = {name: [round(value, 5) for value in column.tolist()] for name, column in curve.items()}
        classes = int(known.labels.max()) + 1
        right = torch.bincount(known.labels[known.predicted == known.labels], minlength=classes)
        total = torch.bincount(known.labels, minlength=classes)
        there = total.nonzero().flatten()
        columns = {"class": there, "right": right[there], "samples": total[there]}
        record["per_class"] = {name: column.tolist() for name, column in columns.items()}
    if len(domains) > 1:
        where = torch.tensor([domains.index(name) for name in result.domains])
        seen = dict.fromkeys(where.tolist())
        record["per_domain"] = {domains[index]: metrics(stats.at(where == index)) for index in seen}
    return record


def metrics(stats: PredictionStats) -> dict[str, float]:
    """Entropy and confidence, and from those with labels top1, top5 (in percent), the two ece, nll and brier."""
    scores: dict[str, float] = {}
    if len(stats.labels):
        scores["entropy"] = _mean(stats.entropy)
        scores["confidence"] = _mean(stats.confidence)
    known = stats.labelled()
    if len(known.labels):
        correct = known.predicted == known.labels
        scores["top1"] = 100.0 * _mean(correct)
        scores["top5"] = 100.0 * _mean(known.in_five)
        scores["ece"] = Reliability.of(known.confidence, correct).error()
        scores["ece_equal_mass"] = Reliability.of(known.confidence, correct, equal_mass=True).error()
        scores["nll"] = _mean(known.surprise)
        scores["brier"] = _mean(known.brier)
    return scores


def _mean(values: Tensor) -> float:
    return float(values.double().mean())


class Interval(NamedTuple):
    """A mean over runs and its interval, of 95 % unless corrected for the number of intervals."""

    mean: float
    half_width: float  # half the width of the interval, or its longer side if they differ; NaN if there is no interval
    runs: int
    low: float = math.nan  # lower end, for an interval whose sides differ
    high: float = math.nan

    @classmethod
    def between(cls, mean: float, low: float, high: float, runs: int) -> Interval:
        return cls(mean, max(high - mean, mean - low), runs, low, high)

    @classmethod
    def of(cls, mean: float, low: float, high: float, runs: int) -> Interval:
        """From its ends, NaN if there is none; `NOTHING` without runs."""
        if not runs:
            return NOTHING
        even = math.isnan(low) or math.isclose(high - mean, mean - low, rel_tol=1e-9)
        return cls(mean, high - mean, runs) if even else cls.between(mean, low, high, runs)

    @property
    def ends(self) -> tuple[float, float]:
        """Both ends; NaN if there is no interval."""
        if math.isnan(self.low):
            return self.mean - self.half_width, self.mean + self.half_width
        return self.low, self.high

    def within(self, highest: float) -> Interval:
        """The same with equal sides, `mean ± half_width`, if that stays within 0 and this; else both ends, cut off."""
        even = self._replace(low=math.nan, high=math.nan)
        if math.isnan(self.half_width) or (even.ends[0] >= 0 and even.ends[1] <= highest):
            return even
        return Interval.between(self.mean, max(0.0, self.ends[0]), min(highest, self.ends[1]), self.runs)

    def __str__(self) -> str:
        return self.text(1)

    def text(self, digits: int, sign: str = "") -> str:
        """`81.2 ± 0.4`; a difference, or if its sides differ, `+1.2 [+0.1, +2.4]`, an end near 0 with more digits."""
        mean = rounded(self.mean, digits, sign)
        if math.isnan(self.half_width):
            return mean
        if math.isnan(self.low) and not sign:
            return f"{mean} ± {self.half_width:.{digits}f}"
        low, high = self.ends
        return f"{mean} [{_end(low, digits, sign)}, {_end(high, digits, sign)}]"


NOTHING = Interval(math.nan, math.nan, 0)
"""What is known without a run."""


def _end(value: float, digits: int, sign: str) -> str:
    while sign and round(value, digits) == 0 and abs(value) > 1e-9:
        digits += 1
    return rounded(value, digits, sign)


def rounded(value: float, digits: int, sign: str = "") -> str:
    return f"{round(value, digits) + 0.0:{sign}.{digits}f}"  # + 0.0: no "-0.0"


def interval(values: list[float], shared: float = math.nan, level: float = 0.05) -> Interval:
    """Mean over repeated runs and its interval (Student's t), for numbers that are not counted image by image.

    Runs that see the same images agree by that alone: the variance is corrected for it, as Nadeau & Bengio (2003) do.
    There is no interval for a single run, for runs that see all the same images, or if this is not known.
    """
    count = len(values)
    if count == 0:
        return NOTHING
    mean = fmean(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / max(1, count - 1)
    if not (count > 1 and shared < 1 and variance > 0):
        return Interval(mean, math.nan, count)
    from scipy.special import stdtrit

    variance *= (1 + (count - 1) * shared) / (1 - shared)
    return Interval(mean, -float(stdtrit(count - 1, level / 2)) * math.sqrt(variance / count), count)


Better = Literal["higher", "lower"] | None
"""Which direction of a metric is good; None where neither is."""


def verdict(difference: Interval, least: float = 0.0, better: Better = "higher") -> str:
    """What a difference to the unadapted model says: `helps`, `hurts` or `can't tell`.

    This is the only place where an interval becomes a verdict: all others translate it. Where neither direction is good
    it says `higher` or `lower`.
    """
    low, high = difference.ends
    if not (low > least or high < least):
        return CANNOT_TELL
    words = {"higher": ("helps", "hurts"), "lower": ("hurts", "helps"), None: ("higher", "lower")}
    return words[better][high < least]

"""How good predictions are. All functions take log-probabilities or logits alike: softmax is what counts."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from neotta.errors import InputError

BINS = 15


class Reliability(NamedTuple):
    """Confidence against accuracy, bin by bin.

    Attributes:
        edges: The edges of the bins, (bins + 1,); a bin excludes its lower edge and includes its upper one.
        samples: How many per bin, (bins,).
        confidence: Mean confidence per bin, (bins,); 0 where a bin is empty.
        accuracy: Share of right predictions per bin, (bins,); 0 where a bin is empty.
    """

    edges: Tensor
    samples: Tensor
    confidence: Tensor
    accuracy: Tensor

    def error(self) -> float:
        """The expected calibration error, from 0 to 1."""
        total = int(self.samples.sum())
        if total == 0:
            return math.nan
        return float((self.samples * (self.confidence - self.accuracy).abs()).sum()) / total


def top_k(logits: Tensor, labels: Tensor, k: int = 1) -> float:
    """Share of samples whose label is among the k most probable classes, in percent; NaN with fewer than k classes.

    Args:
        logits: (N, C).
        labels: Class indices, (N,).
        k: How many guesses count.
    """
    check_labels(logits, labels)
    if logits.shape[1] < k or len(labels) == 0:
        return math.nan
    hits = (logits.topk(k, dim=1).indices == labels.unsqueeze(1)).any(dim=1)
    return 100.0 * float(hits.double().mean())


def reliability(logits: Tensor, labels: Tensor, bins: int = BINS) -> Reliability:
    """Confidence against accuracy in bins of equal width."""
    check_labels(logits, labels)
    return reliability_of_probabilities(logits.softmax(dim=1), labels, bins)


def reliability_of_probabilities(probabilities: Tensor, labels: Tensor, bins: int = BINS) -> Reliability:
    """The same, from probabilities, (N, C)."""
    confidence, predicted = probabilities.max(dim=1)
    return reliability_of_answers(confidence, predicted == labels, bins)


def reliability_of_answers(confidence: Tensor, right: Tensor, bins: int = BINS) -> Reliability:
    """The same, from the confidence of each answer and whether it is right, (N,) each."""
    # The edges are rounded to the dtype of the confidences, so that one that equals an edge falls where it belongs.
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64).to(confidence.dtype)
    where = torch.bucketize(confidence, edges[1:].contiguous()).clamp(max=bins - 1)
    inside = confidence > 0
    where, right = where[inside], right[inside].double()
    count = torch.bincount(where, minlength=bins)
    sums = torch.zeros(2, bins, dtype=torch.float64)
    sums[0].index_add_(0, where, confidence[inside].double())
    sums[1].index_add_(0, where, right)
    means = sums / count.clamp(min=1)
    return Reliability(edges, count, means[0], means[1])


def calibration_error(logits: Tensor, labels: Tensor, bins: int = BINS) -> float:
    """Expected calibration error over all samples, from 0 to 1."""
    return reliability(logits, labels, bins).error()


def entropy(logits: Tensor) -> float:
    """Mean entropy of the predicted distributions in nats."""
    return entropy_of_probabilities(logits.softmax(dim=1))


def entropy_of_probabilities(probabilities: Tensor) -> float:
    """The same, from probabilities, (N, C); they are kept away from 0 by 1e-8."""
    clamped = probabilities.clamp(1e-8, 1)
    return float(-(clamped * clamped.log()).sum(dim=1).mean()) if len(clamped) else math.nan


def negative_log_likelihood(logits: Tensor, labels: Tensor) -> float:
    """Mean of -log p(label) in nats."""
    check_labels(logits, labels)
    return float(torch.nn.functional.cross_entropy(logits.double(), labels)) if len(labels) else math.nan


def per_class_accuracy(logits: Tensor, labels: Tensor) -> Tensor:
    """Top-1 accuracy of each class in percent, (C,); NaN for a class without samples."""
    check_labels(logits, labels)
    classes = logits.shape[1]
    right = (logits.argmax(dim=1) == labels).double()
    count = torch.bincount(labels, minlength=classes)
    return 100.0 * torch.zeros(classes, dtype=torch.float64).index_add_(0, labels, right) / count


class Interval(NamedTuple):
    """A mean over runs and the half-width of its 95 % confidence interval (NaN for a single run)."""

    mean: float
    half_width: float
    runs: int

    def __str__(self) -> str:
        return f"{self.mean:.1f}" if math.isnan(self.half_width) else f"{self.mean:.1f} ± {self.half_width:.1f}"


def interval(values: list[float], normal: bool = False) -> Interval:
    """Mean and 95 % confidence interval over repeated runs.

    Args:
        values: One number per run.
        normal: Use the normal quantile 1.96 instead of Student's t.
    """
    count = len(values)
    if count == 0:
        return Interval(math.nan, math.nan, 0)
    mean = math.fsum(values) / count
    if count == 1:
        return Interval(mean, math.nan, 1)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    if normal:
        quantile = 1.96
    else:
        from scipy.special import stdtrit

        quantile = float(stdtrit(count - 1, 0.975))
    return Interval(mean, quantile * deviation / math.sqrt(count), count)


def verdict(difference: Interval) -> str:
    """What a difference to the unadapted model says: `helps`, `hurts` or `can't tell`."""
    if math.isnan(difference.half_width):
        return "can't tell"
    if difference.mean - difference.half_width > 0:
        return "helps"
    if difference.mean + difference.half_width < 0:
        return "hurts"
    return "can't tell"


def check_labels(logits: Tensor, labels: Tensor) -> None:
    """See to it that logits, (N, C), and labels, (N,), belong together."""
    if logits.dim() != 2 or labels.shape != logits.shape[:1]:
        raise InputError(f"logits (N, C) and labels (N,) were expected, got {_shape(logits)} and {_shape(labels)}")
    if len(labels) and not (int(labels.min()) >= 0 and int(labels.max()) < logits.shape[1]):
        raise InputError(f"labels run from {labels.min()} to {labels.max()}, there are {logits.shape[1]} classes")


def _shape(tensor: Tensor) -> str:
    return str(tuple(tensor.shape))

"""How accurate a stream's answers are, estimated without labels from its last samples.

Two things are measured on every sample: how sure the answer is, and how often it stays the same when a part of the
embedding is dropped (the idea of AETTA, "Label-Free Accuracy Estimation for Test-Time Adaptation", CVPR 2024; only the
head is repeated). Both are too high under a shift, and their product is less so. The interval holds the sampling noise
and the error of the estimate itself, as measured by `benchmarks/estimators.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

WINDOW = 256  # last samples of a stream that an estimate is about
FEWEST = 32  # samples that it needs
DROPPED, MASKS = 0.4, 8  # share of the embedding that is dropped, and how often
Array = np.ndarray[Any, Any]

ERROR = {"confidence": (0.63, 0.09), "product": (0.42, 0.20)}
"""By how much estimates are too high and too low: 95 % of the streams of each model in `benchmarks/estimators.py` are
within. Under a strong shift a model is surer than it should be, and so both err towards too high."""


class Estimate(NamedTuple):
    """An estimate of accuracy, 0 to 1, with its interval and how it was made: `"product"` or `"confidence"`."""

    value: float
    low: float
    high: float
    by: str


class Recent:
    """The last samples of one stream.

    ```python
    recent = Recent(classes=3)
    recent.add(numpy.random.randn(64, 3))
    recent.estimate().by  # 'confidence': nothing is known of dropout
    ```

    Args:
        classes: Number of classes C.
    """

    def __init__(self, classes: int) -> None:
        self.classes, self.seen = classes, 0
        self._kept = np.zeros(WINDOW, np.dtype([("answer", "<i4"), ("sure", "<f4"), ("stable", "<f4")]))

    def add(self, logits: Array, stable: Array | None = None) -> None:
        """Add samples in order: their logits, (n, C), and what `stability` says of them, (n,)."""
        new = np.zeros(len(logits), self._kept.dtype)
        new["answer"], new["sure"] = logits.argmax(1), torch.from_numpy(logits).softmax(1).amax(1).numpy()
        new["stable"] = np.nan if stable is None else stable
        places = (self.seen + np.arange(len(new))) % WINDOW
        self._kept[places[-WINDOW:]] = new[-WINDOW:]
        self.seen += len(new)

    def estimate(self) -> Estimate | None:
        """The accuracy of the last samples; None if there are too few."""
        rows = self._kept[: min(self.seen, WINDOW)]
        if len(rows) < FEWEST:
            return None
        confidence = float(rows["sure"].mean())
        stable = rows["stable"][np.isfinite(rows["stable"])]
        if len(stable) < FEWEST:
            return Estimate(confidence, *interval(confidence, len(rows), ERROR["confidence"]), "confidence")
        value = confidence * (1 - _disagreement(stable, rows["answer"], self.classes))
        return Estimate(value, *interval(value, len(stable), ERROR["product"]), "product")


def stability(classify: Callable[[Tensor], Tensor], embeddings: Tensor, plain: Tensor, adapted: Tensor) -> Array:
    """How often each adapted answer stays the same when a part of the embedding is dropped, (n,).

    The linear head of the plain model maps embeddings, (n, d), to its logits, (n, C).
    """
    kept = torch.rand(MASKS, embeddings.shape[1], generator=torch.Generator().manual_seed(0)) >= DROPPED
    masks = kept.to(embeddings) / (1 - DROPPED)
    with torch.inference_mode():
        changed = classify(embeddings * masks[:, None]) + (adapted - plain)  # (MASKS, n, C)
        same = changed.argmax(2) == adapted.argmax(1)
    return same.double().mean(0).cpu().numpy()


def interval(value: float, samples: int, error: tuple[float, float]) -> tuple[float, float]:
    """The interval of an estimate: sampling noise (90 %) and the estimator's own error, above and below, together."""
    chance = 1.645 * math.sqrt(max(value * (1 - value), 0.01) / samples)
    below, above = (math.hypot(chance, each) for each in error)
    return max(0.0, value - below), min(1.0, value + above)


def _disagreement(stable: Array, answers: Array, classes: int) -> float:
    """AETTA's estimate of the error: disagreement under dropout, raised where answers collapsed to few classes."""
    shares = np.bincount(answers, minlength=classes) / len(answers)
    some = shares[shares > 0]
    entropy = -float((some * np.log(some)).sum()) / math.log(max(classes, 2))
    expected = math.log(max(2, min(classes, len(answers)))) / math.log(max(classes, 2))  # so few samples reach no more
    collapse = min(1.0, max(entropy / expected, 1e-3))
    error = 1 - float(stable.mean())
    return min(1.0, error * min(collapse**-3, 10.0) if collapse < 0.3 else error)

"""What is known of a camera without labels, over its last samples; and how accurate its answers are.

Estimates of accuracy have an interval that says how far to trust them:

- `agreement`: how often an answer stays the same when some of the embedding is dropped (the idea of AETTA, "Label-Free
  Accuracy Estimation for Test-Time Adaptation", CVPR 2024). Only the head is repeated, so it costs next to nothing.
- `confidence`: the mean probability of the answers.
- `product`: agreement times confidence. Both are too high under a shift, and their product is less so.
- `threshold`: the share of answers that are surer than a threshold learnt on clean, labelled images (ATC, "Leveraging
  Unlabeled Data to Predict Out-of-Distribution Performance", ICLR 2022).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from neotta.deploy.serve.engine import Engine, Forward, softmax
from neotta.neo.statefile import Array

WINDOW = 256
"""Number of recent samples that figures are about."""

_ROW = np.dtype(
    [
        ("plain", "<i4"),
        ("adapted", "<i4"),
        *((name, "<f4") for name in ("sure_plain", "sure", "moved", "own", "agrees")),
    ]
)


class Rows(NamedTuple):
    """What is measured on each sample of a batch, (n,) each.

    Attributes:
        plain: Class that the plain model predicts.
        adapted: Class that the adapted model predicts.
        sure_plain: Probability that the plain model gives to its prediction.
        sure: Probability that the adapted model gives to its prediction.
        moved: How far adapting moved the logits, relative to their length.
        own: How often the plain prediction stays the same under dropout on the embedding; NaN if not measured.
        agrees: How often the adapted prediction stays the same under dropout on the embedding; NaN if not measured.
    """

    plain: Array
    adapted: Array
    sure_plain: Array
    sure: Array
    moved: Array
    own: Array
    agrees: Array

    @classmethod
    def of(cls, plain: Array, adapted: Array, own: Array | None = None, agrees: Array | None = None) -> Rows:
        """Measure logits, (n, C) each."""
        step, length = _centred(plain - adapted), _centred(plain)
        moved = np.linalg.norm(step, axis=1) / np.maximum(np.linalg.norm(length, axis=1), 1e-9)
        unknown = np.full(len(plain), np.nan)
        return cls(
            plain.argmax(1),
            adapted.argmax(1),
            softmax(plain).max(1),
            softmax(adapted).max(1),
            moved,
            unknown if own is None else own,
            unknown if agrees is None else agrees,
        )

    def part(self, chosen: Any) -> Rows:
        """Some of the rows."""
        return Rows(*(values[chosen] for values in self))


def _centred(logits: Array) -> Array:
    return np.asarray(logits - logits.mean(1, keepdims=True), np.float64)


class Figures:
    """The last samples of a camera, and what they say together.

    Args:
        classes: Number of classes C.
    """

    def __init__(self, classes: int) -> None:
        self.classes = classes
        self.seen = 0
        self._ring = np.zeros(WINDOW, _ROW)

    def add(self, rows: Rows) -> None:
        """Add the samples of a batch, in order."""
        new = np.zeros(len(rows.plain), _ROW)
        for name, values in rows._asdict().items():
            new[name] = values
        places = (self.seen + np.arange(len(new))) % WINDOW
        self._ring[places[-WINDOW:]] = new[-WINDOW:]
        self.seen += len(new)

    def recent(self) -> Array:
        """The last samples, at most `WINDOW`, as records; not in order."""
        return self._ring[: min(self.seen, WINDOW)]

    def summary(self) -> dict[str, float | None]:
        """The figures by name; None for what is not known yet."""
        rows = self.recent()
        if not len(rows):
            return dict.fromkeys(NAMES)
        shares = np.unique(rows["adapted"], return_counts=True)[1] / len(rows)
        measured = rows[np.isfinite(rows["agrees"])]
        return {
            "disagreement": float((rows["plain"] != rows["adapted"]).mean()),
            "confidence_plain": float(rows["sure_plain"].mean()),
            "confidence": float(rows["sure"].mean()),
            "shift": float(rows["moved"].mean()),
            "top_share": float(shares.max()),
            "effective_classes": float(np.exp(-(shares * np.log(shares)).sum())),
            "stable_plain": float(measured["own"].mean()) if len(measured) else None,
            "stable": float(measured["agrees"].mean()) if len(measured) else None,
        }


NAMES = {
    "disagreement": "How often plain and adapted answers differ.",
    "confidence_plain": "Mean probability of the plain answer.",
    "confidence": "Mean probability of the adapted answer.",
    "shift": "How far adapting moves the logits, relative to their length.",
    "top_share": "Share of the most frequent predicted class.",
    "effective_classes": "Number of classes that are seen, exp of the entropy of predicted classes.",
    "stable_plain": "How often the plain answer stays the same under dropout on the embedding.",
    "stable": "How often the adapted answer does.",
}


RATE = 0.4
MASKS = 8
ROWS = 32
"""At most so many rows of a batch are measured."""

FEWEST = 32
"""An estimate needs so many samples."""

ERROR = {"agreement": (0.66, 0.08), "confidence": (0.63, 0.09), "product": (0.42, 0.20), "threshold": (0.37, 0.14)}
"""By how much estimates are too high and too low: 95 % of the streams of each model in `benchmarks/estimators.py` are
within. Under a strong shift a model is surer than it should be, and so all of them err towards too high."""


class Estimate(NamedTuple):
    """An estimate of accuracy, 0 to 1, with its interval and how it was made."""

    accuracy: float
    low: float
    high: float
    by: str


class Dropout:
    """Repeats the head with a part of the embedding dropped.

    Args:
        engine: The model.
        seed: Seed of the dropout masks; all batches use the same masks, so that answers are reproducible.
    """

    def __init__(self, engine: Engine, seed: int = 0) -> None:
        self._engine = engine
        self._generator = torch.Generator().manual_seed(seed)
        self._masks: Tensor | None = None

    def __call__(self, forward: Forward, adapted: Array) -> tuple[Array, Array] | None:
        """How often each answer stays the same, plain and adapted, (N,) each; NaN for rows that were not measured.

        Args:
            forward: What the plain model said.
            adapted: Adapted logits, (N, C).

        Returns:
            None if the model does not show its embeddings.
        """
        if len(forward.embeddings) != 1 or forward.embeddings[0].dim() != 2:
            return None
        rows = forward.embeddings[0][:ROWS].clone()
        if self._masks is None or self._masks.shape[1] != rows.shape[1]:
            keep = torch.rand(MASKS, rows.shape[1], generator=self._generator) >= RATE
            self._masks = (keep / (1 - RATE)).to(rows)
        with torch.inference_mode():
            logits = self._engine.head_logits(rows * self._masks[:, None].to(rows))  # (MASKS, n, C)
        if logits is None:
            return None
        changed = logits.float().cpu().numpy()
        plain, moved = forward.logits[: len(rows)], adapted[: len(rows)] - forward.logits[: len(rows)]
        own = (changed.argmax(2) == plain.argmax(1)).mean(0)
        agrees = ((changed + moved).argmax(2) == adapted[: len(rows)].argmax(1)).mean(0)
        rest = np.full(len(adapted) - len(rows), np.nan)
        return np.concatenate([own, rest]), np.concatenate([agrees, rest])


def estimates(rows: Array, classes: int, threshold: float | None = None) -> dict[str, Estimate]:
    """Estimate the accuracy of adapted answers from the records of `Figures.recent`, in every way that is possible."""
    by_name = {}
    measured = rows["agrees"][np.isfinite(rows["agrees"])]
    if len(measured) >= FEWEST:
        by_name["agreement"] = _interval(_agreement(measured, rows["adapted"], classes), len(measured), "agreement")
    if len(rows) >= FEWEST:
        by_name["confidence"] = _interval(float(rows["sure"].mean()), len(rows), "confidence")
        if "agreement" in by_name:
            product = by_name["agreement"].accuracy * by_name["confidence"].accuracy
            by_name["product"] = _interval(product, len(measured), "product")
        if threshold is not None:
            by_name["threshold"] = _interval(float((rows["sure"] > threshold).mean()), len(rows), "threshold")
    return by_name


PREFERRED = ("threshold", "product", "agreement", "confidence")
"""The order of their mean absolute errors in `benchmarks/estimators.py`."""


def best(estimates_by_name: dict[str, Estimate]) -> Estimate | None:
    """The estimate to show: the one that is off least, of those that are known."""
    return next((estimates_by_name[by] for by in PREFERRED if by in estimates_by_name), None)


def _agreement(agrees: Array, predicted: Array, classes: int) -> float:
    """AETTA's estimate: disagreement under dropout, raised where predictions collapsed to few classes."""
    shares = np.bincount(predicted, minlength=classes) / len(predicted)
    some = shares[shares > 0]
    entropy = -float((some * np.log(some)).sum()) / math.log(max(classes, 2))
    expected = math.log(min(classes, len(predicted))) / math.log(max(classes, 2))  # what so few samples can reach
    collapse = min(1.0, max(entropy / expected, 1e-3))
    error = (1 - float(agrees.mean())) * min(collapse**-3, 10.0) if collapse < 0.3 else 1 - float(agrees.mean())
    return 1 - min(error, 1.0)


def _interval(value: float, samples: int, by: str) -> Estimate:
    return Estimate(value, *interval(value, samples, ERROR[by]), by)


def interval(value: float, samples: int, error: tuple[float, float]) -> tuple[float, float]:
    """The interval of an estimate: sampling noise (90 %) and the estimator's own error together.

    Args:
        value: The estimate.
        samples: Number of samples it is based on.
        error: By how much the estimator is usually too high, and too low.
    """
    chance = 1.645 * math.sqrt(max(value * (1 - value), 0.01) / samples)
    below, above = (math.hypot(chance, each) for each in error)
    return max(0.0, value - below), min(1.0, value + above)


def learn_threshold(sure: Array, right: Array) -> float:
    """The threshold above which as many answers are as are right, on clean images.

    Args:
        sure: Probability of each answer, (n,).
        right: Whether it is right, (n,) bool.
    """
    wrong = float(1 - np.mean(right))
    return float(np.quantile(sure, wrong)) if len(sure) else 0.0

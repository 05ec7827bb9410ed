"""From what a run predicted to the numbers in its record."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from neotta.evaluate import metrics

if TYPE_CHECKING:
    from neotta.evaluate.outputs import Outputs

UNKNOWN = -1
SMALLEST = 1e-8
"""Probabilities are kept away from 0 by this in the entropy."""


class Facts(NamedTuple):
    """All that the scores need to know of each prediction, (N,) each: a thousandth of its logits.

    Attributes:
        labels: The true classes, UNKNOWN where nobody knows.
        predicted: The most probable classes.
        confidence: Their probabilities.
        entropy: Of the predicted distribution, in nats.
        surprise: -log of the label's probability; NaN where the label is not known.
        in_five: Whether the label is among the five most probable classes, 0 or 1; NaN with fewer than five.
    """

    labels: Tensor
    predicted: Tensor
    confidence: Tensor
    entropy: Tensor
    surprise: Tensor
    in_five: Tensor

    @classmethod
    def of(cls, logits: Tensor, labels: Tensor) -> Facts:
        """Look at predictions.

        Args:
            logits: (N, C).
            labels: (N,) int64, UNKNOWN where nobody knows.

        Raises:
            InputError: A label is no class.
        """
        known = labels != UNKNOWN
        column = labels.clamp(min=0).unsqueeze(1)
        metrics.check_labels(logits, column.squeeze(1))
        logs = logits.float().log_softmax(dim=1)
        top, predicted = logs.max(dim=1)
        in_five = torch.full_like(top, math.nan)
        if logs.shape[1] >= 5:
            in_five = logs.topk(5, dim=1).indices.eq(column).any(dim=1).float()
        surprise = -logs.gather(1, column).squeeze(1)
        logs.clamp_(min=math.log(SMALLEST))
        entropy = -(logs.exp() * logs).sum(dim=1)
        return cls(
            labels,
            predicted,
            top.exp(),
            entropy,
            surprise.masked_fill(~known, math.nan),
            in_five.masked_fill(~known, math.nan),
        )

    @classmethod
    def join(cls, parts: Sequence[Facts]) -> Facts:
        """One after the other."""
        if not parts:
            return cls(torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64), *[torch.empty(0)] * 4)
        return cls(*(torch.cat(columns) for columns in zip(*parts, strict=True)))

    def at(self, chosen: Tensor) -> Facts:
        """Some of them, by a mask (N,)."""
        return Facts(*(column[chosen] for column in self))

    def known(self) -> Facts:
        """Those whose label is known."""
        known = self.labels != UNKNOWN
        return self if bool(known.all()) else self.at(known)


def score(outputs: Outputs) -> dict[str, Any]:
    """All that can be said of predictions; what needs labels only where there are any."""
    facts = outputs.facts
    record: dict[str, Any] = {
        "count": len(facts.labels),
        "unreadable": outputs.skipped,
        "not_adapted": outputs.not_adapted,
        "metrics": _metrics(facts),
    }
    known = facts.known()
    if len(known.labels):
        record["reliability"] = _reliability(known)
        record["per_class"] = _per_class(known)
    names = list(dict.fromkeys(outputs.domains))
    if len(names) > 1:
        where = torch.tensor([names.index(name) for name in outputs.domains])
        record["per_domain"] = {name: _metrics(facts.at(where == index)) for index, name in enumerate(names)}
    return record


def _metrics(facts: Facts) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if len(facts.labels):
        found["entropy"] = _mean(facts.entropy)
        found["confidence"] = _mean(facts.confidence)
    known = facts.known()
    if len(known.labels):
        right = known.predicted == known.labels
        found["top1"] = 100.0 * _mean(right)
        found["top5"] = 100.0 * _mean(known.in_five)
        found["ece"] = metrics.reliability_of_answers(known.confidence, right).error()
        found["nll"] = _mean(known.surprise)
    return found


def _mean(values: Tensor) -> float:
    return float(values.double().mean())


def _reliability(known: Facts) -> dict[str, list[float]]:
    curve = metrics.reliability_of_answers(known.confidence, known.predicted == known.labels)
    return {
        "samples": curve.samples.tolist(),
        "confidence": [round(value, 5) for value in curve.confidence.tolist()],
        "accuracy": [round(value, 5) for value in curve.accuracy.tolist()],
    }


def _per_class(known: Facts) -> dict[str, list[int]]:
    """Right predictions and samples of each class that occurs."""
    classes = int(known.labels.max()) + 1
    right = torch.bincount(known.labels[known.predicted == known.labels], minlength=classes)
    total = torch.bincount(known.labels, minlength=classes)
    present = total.nonzero().flatten()
    return {"class": present.tolist(), "right": right[present].tolist(), "samples": total[present].tolist()}

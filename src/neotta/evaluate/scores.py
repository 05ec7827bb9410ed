"""From what a run predicted to the numbers in its record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from neotta.evaluate import metrics

if TYPE_CHECKING:
    from neotta.evaluate.workbench import Outputs


def score(outputs: Outputs) -> dict[str, Any]:
    """All that can be said of predictions; what needs labels only where there are any."""
    logits = outputs.tensor()
    known = torch.tensor([label is not None for label in outputs.labels], dtype=torch.bool)
    labels = torch.tensor([-1 if label is None else label for label in outputs.labels], dtype=torch.int64)
    record: dict[str, Any] = {
        "count": len(outputs.ids),
        "unreadable": outputs.skipped,
        "not_adapted": outputs.not_adapted,
        "metrics": _metrics(logits, labels, known),
    }
    if bool(known.any()):
        record["reliability"] = _reliability(logits[known], labels[known])
        record["per_class"] = _per_class(logits[known], labels[known])
    names = list(dict.fromkeys(outputs.domains))
    if len(names) > 1:
        where = torch.tensor([names.index(name) for name in outputs.domains])
        record["per_domain"] = {
            name: _metrics(logits[where == index], labels[where == index], known[where == index])
            for index, name in enumerate(names)
        }
    return record


def _metrics(logits: Tensor, labels: Tensor, known: Tensor) -> dict[str, Any]:
    probabilities = logits.softmax(dim=1) if logits.numel() else logits
    found: dict[str, Any] = {}
    if len(logits):
        found["entropy"] = metrics.entropy_of_probabilities(probabilities)
        found["confidence"] = float(probabilities.max(dim=1).values.mean())
    if bool(known.any()):
        logits, probabilities, labels = logits[known], probabilities[known], labels[known]
        found["top1"] = metrics.top_k(logits, labels)
        found["top5"] = metrics.top_k(logits, labels, k=5)
        found["ece"] = metrics.reliability_of_probabilities(probabilities, labels).error()
        found["nll"] = metrics.negative_log_likelihood(logits, labels)
    return found


def _reliability(logits: Tensor, labels: Tensor) -> dict[str, list[float]]:
    curve = metrics.reliability(logits, labels)
    return {
        "samples": curve.samples.tolist(),
        "confidence": [round(value, 5) for value in curve.confidence.tolist()],
        "accuracy": [round(value, 5) for value in curve.accuracy.tolist()],
    }


def _per_class(logits: Tensor, labels: Tensor) -> dict[str, list[int]]:
    """Right predictions and samples of each class that occurs."""
    classes = logits.shape[1]
    right = torch.bincount(labels[logits.argmax(dim=1) == labels], minlength=classes)
    total = torch.bincount(labels, minlength=classes)
    present = total.nonzero().flatten()
    return {"class": present.tolist(), "right": right[present].tolist(), "samples": total[present].tolist()}

"""What is known of a camera without labels, over its last samples."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from neotta.neo.recent_answers import diversity
from neotta.neo.statefile import Array
from neotta.neo.stream_moments import softmax

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
        sure_plain: Its probability, plain.
        sure: Its probability, adapted.
        moved: How far adapting moved the logits, relative to their length.
        own: How often the plain prediction stays the same under dropout on the embedding; NaN if not measured.
        agrees: The same for the adapted prediction.
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
        top, effective = diversity(rows["adapted"])
        measured = rows[np.isfinite(rows["agrees"])]
        return {
            "disagreement": float((rows["plain"] != rows["adapted"]).mean()),
            "confidence_plain": float(rows["sure_plain"].mean()),
            "confidence": float(rows["sure"].mean()),
            "shift": float(rows["moved"].mean()),
            "top_share": top,
            "effective_classes": effective,
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

"""What a method changes in the predictions, compared with no adaptation on the same samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from neotta.evaluate.predictions import Predictions

BASELINE = "none"
EXAMPLES = 10


class Example(NamedTuple):
    """A sample whose prediction changed: classes and confidences without the method and with it."""

    id: str
    before: int
    after: int
    confidence_before: float
    confidence_after: float


@dataclass(frozen=True)
class Change:
    """What a method changes on a domain, compared with no adaptation on the same samples.

    Attributes:
        method: Its label.
        domain: The domain.
        samples: How many both predicted.
        changed: How many predictions differ.
        before: Metrics without it: entropy and confidence, and with labels the others.
        after: Metrics with it.
        histogram_before: How often each class is predicted without it, (C,).
        histogram_after: How often with it, (C,).
        examples: Changed samples that tell most when looked at: those where both answers are surest.
        fixed: How many became right, where labels are known; else None.
        broken: How many became wrong, where labels are known; else None.
    """

    method: str
    domain: str
    samples: int
    changed: int
    before: dict[str, Any]
    after: dict[str, Any]
    histogram_before: NDArray[np.int64]
    histogram_after: NDArray[np.int64]
    examples: tuple[Example, ...]
    fixed: int | None
    broken: int | None

    def classes(self, count: int = 5) -> list[tuple[int, int, int]]:
        """The classes predicted more or less often than before, the largest changes first: (class, before, after)."""
        change = self.histogram_after - self.histogram_before
        order = [int(index) for index in np.argsort(-np.abs(change), kind="stable") if change[index]]
        return [(index, int(self.histogram_before[index]), int(self.histogram_after[index])) for index in order[:count]]


def changes(
    predictions: Mapping[str, Predictions], measured: Mapping[tuple[str, str], dict[str, Any]], width: int
) -> list[Change]:
    """Compare every method with `none`, domain by domain.

    Args:
        predictions: By method.
        measured: Metrics by domain and method.
        width: The number of classes C.
    """
    plain = predictions[BASELINE]
    found = []
    for method, adapted in predictions.items():
        if method == BASELINE:
            continue
        rows = adapted.rows()
        pairs: dict[str, list[tuple[int, int]]] = {}
        for place, row in plain.rows().items():
            if place in rows:
                pairs.setdefault(place[0], []).append((row, rows[place]))
        for domain, both in pairs.items():
            before, after = measured[domain, BASELINE], measured[domain, method]
            found.append(_change(method, domain, plain, adapted, np.array(both), before, after, width))
    return found


def _change(
    method: str,
    domain: str,
    plain: Predictions,
    adapted: Predictions,
    rows: NDArray[np.int64],
    before: dict[str, Any],
    after: dict[str, Any],
    width: int,
) -> Change:
    """Compare two methods on a domain; `rows` are the rows of each sample in both, (N, 2)."""
    one, other = rows.T
    old, new = plain.classes[one], adapted.classes[other]
    sure = np.minimum(plain.confidence[one], adapted.confidence[other])
    changed = np.flatnonzero(old != new)
    looked_at = changed[np.argsort(-sure[changed], kind="stable")][:EXAMPLES]
    truth = [plain.labels[row] for row in one]
    known = np.array([label is not None for label in truth])
    right = np.array([-1 if label is None else label for label in truth])
    return Change(
        method=method,
        domain=domain,
        samples=len(rows),
        changed=len(changed),
        before=before,
        after=after,
        histogram_before=np.bincount(old, minlength=width),
        histogram_after=np.bincount(new, minlength=width),
        examples=tuple(
            Example(
                plain.ids[one[row]],
                int(old[row]),
                int(new[row]),
                float(plain.confidence[one[row]]),
                float(adapted.confidence[other[row]]),
            )
            for row in looked_at
        ),
        fixed=int(((old != right) & (new == right)).sum()) if known.any() else None,
        broken=int(((old == right) & (new != right)).sum()) if known.any() else None,
    )

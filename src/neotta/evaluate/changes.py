"""What a method changes in the predictions, compared with no adaptation on the same samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from neotta.evaluate.predictions import UNKNOWN, RunResult

BASELINE = "none"
EXAMPLES = 10


class ChangedSample(NamedTuple):
    """A sample whose prediction changed: classes and confidences without the method and with it."""

    id: str
    before: int
    after: int
    confidence_before: float
    confidence_after: float


@dataclass(frozen=True)
class PredictionChange:
    """What a method changes on a domain, compared with no adaptation on the same samples.

    Attributes:
        method: Its label.
        domain: The domain.
        samples: Number of samples that both predicted.
        changed: Number of predictions that differ.
        before: Metrics without it: entropy and confidence, and with labels the others.
        after: Metrics with it.
        histogram_before: How often each class is predicted without it, (C,).
        histogram_after: How often with it, (C,).
        examples: The changed samples where both predictions are most confident.
        fixed: Number of predictions that became right; None if unlabelled.
        broken: Number of predictions that became wrong; None if unlabelled.
    """

    method: str
    domain: str
    samples: int
    changed: int
    before: dict[str, Any]
    after: dict[str, Any]
    histogram_before: NDArray[np.int64]
    histogram_after: NDArray[np.int64]
    examples: tuple[ChangedSample, ...]
    fixed: int | None
    broken: int | None

    def classes(self, count: int = 5) -> list[tuple[int, int, int]]:
        """The classes predicted more or less often than before, the largest changes first: (class, before, after)."""
        change = self.histogram_after - self.histogram_before
        order = [int(index) for index in np.argsort(-np.abs(change), kind="stable") if change[index]]
        return [(index, int(self.histogram_before[index]), int(self.histogram_after[index])) for index in order[:count]]


def changes(
    predictions: Mapping[str, RunResult], measured: Mapping[tuple[str, str], dict[str, Any]]
) -> list[PredictionChange]:
    """Compare every method with `none`, domain by domain.

    Args:
        predictions: By method.
        measured: Metrics by domain and method.
    """
    plain = predictions[BASELINE]
    found = []
    for method, adapted in predictions.items():
        if method == BASELINE:
            continue
        rows = adapted.rows()
        both: dict[str, list[tuple[int, int]]] = {}
        for (domain, name), row in plain.rows().items():
            if (domain, name) in rows:
                both.setdefault(domain, []).append((row, rows[domain, name]))
        for domain, pairs in both.items():
            metrics = measured[domain, BASELINE], measured[domain, method]
            found.append(_change(method, domain, plain, adapted, np.array(pairs), metrics))
    return found


def _change(
    method: str,
    domain: str,
    plain: RunResult,
    adapted: RunResult,
    rows: NDArray[np.int64],
    metrics: tuple[dict[str, Any], dict[str, Any]],
) -> PredictionChange:
    """Compare two methods on a domain; `rows` are the rows of each sample in both, (N, 2)."""
    one, other = rows.T
    old, new = plain.stats.predicted.numpy()[one], adapted.stats.predicted.numpy()[other]
    sure_before, sure_after = plain.stats.confidence.numpy()[one], adapted.stats.confidence.numpy()[other]
    truth = plain.stats.labels.numpy()[one]
    changed = np.flatnonzero(old != new)
    surest = changed[np.argsort(-np.minimum(sure_before, sure_after)[changed], kind="stable")][:EXAMPLES]
    labelled = bool((truth != UNKNOWN).any())
    return PredictionChange(
        method=method,
        domain=domain,
        samples=len(rows),
        changed=len(changed),
        before=metrics[0],
        after=metrics[1],
        histogram_before=np.bincount(old, minlength=plain.classes),
        histogram_after=np.bincount(new, minlength=plain.classes),
        examples=tuple(
            ChangedSample(
                plain.ids[one[row]], int(old[row]), int(new[row]), float(sure_before[row]), float(sure_after[row])
            )
            for row in surest
        ),
        fixed=int(((old != truth) & (new == truth)).sum()) if labelled else None,
        broken=int(((old == truth) & (new != truth)).sum()) if labelled else None,
    )

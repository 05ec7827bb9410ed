"""Reliability diagrams: how often the model is right when it is so sure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from neotta.evaluate.domains import CLEAN
from neotta.evaluate.frame import labels
from neotta.evaluate.metrics import BINS
from neotta.evaluate.records import Record
from neotta.paper.claims import called, listed
from neotta.paper.item import Report, item, need
from neotta.paper.measured import Measured
from neotta.paper.tables import Rows
from neotta.report.charts import reliability_chart
from neotta.report.figures import display

Curve = NDArray[np.float64]
"""Samples, sum of confidences and right answers of each bin, (3, 15)."""


@item(
    title="Reliability diagrams",
    remarks=("All domains but the clean one, and all seeds, are put into the same bins.",),
    runs=lambda setting: setting.online(clean=True),
)
def reliability(report: Report) -> None:
    """When the model states a confidence, how often is it right?"""
    results = report.results("ece")
    curves = need(_curves(results, report.records))
    data: Rows = []
    for label, curve in curves.items():
        for number, (samples, confidence, right) in enumerate(curve.T):
            row = {"method": label, "from": number / BINS, "to": (number + 1) / BINS, "samples": int(samples)}
            known = {"confidence": confidence / samples, "accuracy": right / samples} if samples else {}
            data.append({**row, "confidence": None, "accuracy": None, **known})
    report.figure(
        "reliability",
        "reliability",
        reliability_chart(
            curves, {label: f"{display(label)}: ECE {error(curve):.3f}" for label, curve in curves.items()}
        ),
        data,
        "Above: how often answers of a confidence are right; on the dashed line, as often as the model says. Below "
        "it, the model is too sure. Below: how many answers have that confidence. ECE: expected calibration error "
        f"of all samples together ({results.conditions.samples} of each domain and seed).",
    )
    said = []
    for label, curve in curves.items():
        count, confidence, right = curve.sum(axis=1)
        said.append(f"{100 * confidence / count:.1f} and {100 * right / count:.1f} % with {called(label)}")
    report.say(f"mean confidence and share of right answers are {listed(said)}")


def error(curve: Curve) -> float:
    """The calibration error of all samples together."""
    return float(np.abs(curve[1] - curve[2]).sum() / curve[0].sum())


def _curves(results: Measured, records: Sequence[Record]) -> dict[str, Curve]:
    means = results.means
    others = sorted((label for label in means if label not in ("none", "neo")), key=lambda label: means[label].mean)
    measured = [record for record in records if record.measured]
    by_label: dict[str, dict[tuple[str, int], Curve]] = {label: {} for label in ("none", "neo", *others[:1])}
    samples = results.conditions.samples
    for record, label in zip(measured, labels(measured), strict=True):
        if record.reliability and record.samples == samples and record.domain != CLEAN and label in by_label:
            by_label[label][record.domain, record.seed] = _sums(record.reliability)
    by_label = {label: curves for label, curves in by_label.items() if curves}
    shared = set.intersection(*(set(curves) for curves in by_label.values())) if by_label else set()
    return {
        label: np.sum([curves[place] for place in sorted(shared)], axis=0)
        for label, curves in by_label.items()
        if shared
    }


def _sums(reliability: Mapping[str, Sequence[float]]) -> Curve:
    samples = np.asarray(reliability["samples"], dtype=np.float64)
    return np.stack([samples, samples * reliability["confidence"], samples * reliability["accuracy"]])

"""Reliability diagrams: how often the model is right when it is so sure."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from neotta.evaluate.comparison import Block
from neotta.evaluate.domains import CLEAN
from neotta.evaluate.metrics import BINS
from neotta.evaluate.naming import Variant, labels
from neotta.evaluate.plan import Plan
from neotta.evaluate.records import Record
from neotta.paper import comparing
from neotta.paper.evidence import Evidence
from neotta.paper.item import Finding, Item, Rows
from neotta.paper.study import Setting
from neotta.report.figures import INK, Figure, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

Curve = NDArray[np.float64]
"""Samples, sum of confidences and right answers of each bin, (3, 15)."""


class Reliability(Item):
    """Diagrams of the unadapted model, of NEO, and of the best calibrated other method."""

    name = "reliability"
    title = "Reliability diagrams"
    question = "When the model says that it is so sure, how often is it right?"

    def plans(self, setting: Setting) -> list[Plan]:
        """The runs of the main table."""
        return setting.online(clean=True)

    def find(self, evidence: Evidence) -> Finding:
        """Sum up the bins of all shifted domains and seeds."""
        finding = Finding(claimed=False)
        for setting in evidence.settings:
            records = evidence.records(*self.plans(setting))
            block = comparing.fullest(comparing.compared(records, "ece"))
            curves = _curves(block, records) if block else {}
            if block is None or not curves:
                continue
            finding.parts.append(_figure(setting, block, curves))
            finding.say(_answer(setting, curves))
        finding.notes = (
            ["All domains but the clean one, and all seeds, are put into the same bins."] if finding.said else []
        )
        return finding


def _curves(block: Block, records: Sequence[Record]) -> dict[str, Curve]:
    """The bins of the methods to show, summed over the domains and seeds that all of them have."""
    means = comparing.means(block)
    others = sorted((label for label in means if label not in ("none", "neo")), key=lambda label: means[label].mean)
    names = labels([record for record in records if "metrics" in record])
    found: dict[str, dict[tuple[str, int], Curve]] = {label: {} for label in ("none", "neo", *others[:1])}
    for record in records:
        if "reliability" not in record or record["samples"] != block.conditions.samples or record["domain"] == CLEAN:
            continue
        label = names[Variant.of(record)]
        if label in found:
            found[label][record["domain"], record["seed"]] = _sums(record["reliability"])
    found = {label: curves for label, curves in found.items() if curves}
    shared = set.intersection(*(set(curves) for curves in found.values())) if found else set()
    return {label: np.sum([curves[place] for place in shared], axis=0) for label, curves in found.items() if shared}


def _sums(reliability: Mapping[str, Sequence[float]]) -> Curve:
    samples = np.asarray(reliability["samples"], dtype=np.float64)
    return np.stack([samples, samples * reliability["confidence"], samples * reliability["accuracy"]])


def _answer(setting: Setting, curves: Mapping[str, Curve]) -> str:
    said = []
    for label, curve in curves.items():
        count, confidence, right = curve.sum(axis=1)
        said.append(f"{100 * confidence / count:.1f} and {100 * right / count:.1f} % with {label}")
    return f"On {setting.title}, mean confidence and share of right answers are {comparing.listed(said)}."


def error(curve: Curve) -> float:
    """The calibration error of all samples together."""
    return float(np.abs(curve[1] - curve[2]).sum() / curve[0].sum())


def _figure(setting: Setting, block: Block, curves: Mapping[str, Curve]) -> Figure:
    data: Rows = []
    for label, curve in curves.items():
        for number, (samples, confidence, right) in enumerate(curve.T):
            row = {"method": label, "from": number / BINS, "to": (number + 1) / BINS, "samples": int(samples)}
            known = {"confidence": confidence / samples, "accuracy": right / samples} if samples else {}
            data.append({**row, "confidence": None, "accuracy": None, **known})
    return Figure(
        comparing.file_name("reliability", setting.title),
        f"{setting.title}: reliability",
        functools.partial(_draw, curves),
        data,
        "Above: how often answers of a confidence are right; on the dashed line, as often as the model says. Below it, "
        "the model is too sure. Below: how many answers have that confidence. ECE: expected calibration error of all "
        f"samples together ({block.conditions.samples} of each domain and seed).",
        (7.0, 3.4),
    )


def _draw(curves: Mapping[str, Curve], canvas: Canvas) -> None:
    grid = canvas.subplots(2, len(curves), sharex=True, sharey="row", squeeze=False, height_ratios=(3, 1))
    names = list(curves)
    for (above, below), (label, curve) in zip(grid.T, curves.items(), strict=True):
        _draw_curve(above, below, curve, style(label, names).color)
        above.set_title(f"{label}: ECE {error(curve):.3f}")
        below.set_xlabel("confidence")
        below.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
    grid[0, 0].set_ylabel("share of right answers")
    grid[1, 0].set_ylabel("answers in %")


def _draw_curve(above: Axes, below: Axes, curve: Curve, color: str) -> None:
    edges = np.arange(BINS) / BINS
    filled = curve[0] > 0
    shares = 100 * curve[0] / curve[0].sum()
    right = curve[2][filled] / curve[0][filled]
    above.bar(edges[filled], right, width=1 / BINS, align="edge", color=color, edgecolor="none", linewidth=0)
    above.plot([0, 1], [0, 1], color=INK, linewidth=1.0, linestyle="--")
    above.set_xlim(0, 1)
    above.set_ylim(0, 1)
    below.bar(edges, shares, width=1 / BINS, align="edge", color=color, edgecolor="none", linewidth=0)
    for axes in (above, below):
        axes.grid(axis="y")

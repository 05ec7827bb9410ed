"""What NEO does for accuracy and calibration on each subject."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from neotta.evaluate.comparison import METRICS
from neotta.evaluate.metrics import Interval
from neotta.evaluate.plan import Plan
from neotta.paper import comparing
from neotta.paper.evidence import Evidence
from neotta.paper.item import Finding, Holds, Item, Rows, Table, all_hold
from neotta.paper.study import Setting
from neotta.report.figures import Bars, Figure, bars
from neotta.report.grids import Entry, Grid, number

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

MATCH = 0.005
"""A calibration error that rises by no more than this is matched."""
SHARE = 9 / 12
"""In how many of the paper's settings NEO improves or matches the calibration error."""


class Gain(NamedTuple):
    """What NEO changes on a subject; `levels` are the accuracies without and with it, then the calibration errors."""

    title: str
    accuracy: Interval
    error: Interval
    levels: list[Interval]


class Gains(Item):
    """Figure 4a and 4b."""

    name = "figure-gains"
    title = "Gain in accuracy and change of calibration error"
    place = "Figure 4a and 4b"
    question = "Does NEO raise accuracy and keep predictions calibrated, whatever the model and the data?"
    claim = (
        "NEO raises accuracy on every model and dataset, and lowers or keeps the calibration error in 9 of 12 of them."
    )

    def plans(self, setting: Setting) -> list[Plan]:
        """NEO and the unadapted model on all images."""
        return [setting.full("none", "neo")]

    def find(self, evidence: Evidence) -> Finding:
        """Take the differences on the same samples, averaged over domains."""
        gains = [gain for setting in evidence.settings if (gain := _gain(setting, evidence, self)) is not None]
        finding = Finding()
        if not gains:
            return finding
        for gain in gains:
            finding.say(
                f"On all images of {gain.title}, NEO changes accuracy by {comparing.gain_words(gain.accuracy)} and the "
                f"calibration error by {number(gain.error, METRICS['ece'], '+')}."
            )
        finding.verdicts = [_holds(gains)]
        finding.parts = [_figure(gains), _table(gains)]
        finding.notes = [
            "All images are seen with every seed, in another order: the intervals are about the order, not about "
            "other images.",
            f"The calibration error counts as kept if it rises by at most {MATCH}.",
        ]
        return finding


def _gain(setting: Setting, evidence: Evidence, item: Gains) -> Gain | None:
    changes, levels = [], []
    for metric in ("top1", "ece"):
        block = comparing.fullest(comparing.compared(evidence.records(*item.plans(setting)), metric))
        gap = comparing.mean_gaps(block).get("neo") if block else None
        if block is None or gap is None:
            return None
        means = comparing.means(block)
        changes.append(gap.interval)
        levels += [means["none"], means["neo"]]
    return Gain(setting.title, changes[0], changes[1], levels)


def _holds(gains: Sequence[Gain]) -> Holds:
    gained = all_hold([comparing.claim_of_gain(gain.accuracy) for gain in gains])
    kept = sum(gain.error.mean <= MATCH for gain in gains)
    return "partly" if gained == "yes" and kept < SHARE * len(gains) else gained


def _figure(gains: Sequence[Gain]) -> Figure:
    rows: Rows = []
    for gain in gains:
        for metric, change in (("top1", gain.accuracy), ("ece", gain.error)):
            rows.append({"subject": gain.title, "metric": metric, **comparing.plain(change)})
    return Figure(
        "gains",
        "What NEO changes, by subject",
        functools.partial(_draw, gains),
        rows,
        "Difference between NEO and no adaptation on all images, mean over the domains, with its 95 % interval over "
        "seeds. Accuracy: to the right is better. Calibration error: to the left is better.",
        (7.0, 1.0 + 0.42 * len(gains)),
    )


def _draw(gains: Sequence[Gain], canvas: Canvas) -> None:
    titles = [gain.title.replace(" on ", "\non ") for gain in gains]
    left, right = canvas.subplots(1, 2, sharey=True)
    for axes, changes, digits in (
        (left, [gain.accuracy for gain in gains], 1),
        (right, [gain.error for gain in gains], 3),
    ):
        means, halves = [change.mean for change in changes], [change.half_width for change in changes]
        bars(axes, Bars(titles, {"neo": means}, {"neo": halves}), digits=digits, sign="+")
    left.set_xlabel("change of accuracy in points")
    right.set_xlabel("change of calibration error")


def _table(gains: Sequence[Gain]) -> Table:
    percent, error = METRICS["top1"], METRICS["ece"]
    metrics = {"accuracy, none": percent, "accuracy, neo": percent, "change of accuracy": percent}
    metrics |= {"ECE, none": error, "ECE, neo": error, "change of ECE": error}
    shown, data = [], []
    for gain in gains:
        values = dict(zip(metrics, (*gain.levels[:2], gain.accuracy, *gain.levels[2:], gain.error), strict=True))
        texts = (number(value, metrics[name], "+" if "change" in name else "") for name, value in values.items())
        shown.append((gain.title, tuple(Entry(text) for text in texts)))
        data.append({"subject": gain.title, **{name: value.mean for name, value in values.items()}})
    return Table(
        "Accuracy and calibration error, without and with NEO",
        Grid("subject", tuple(metrics), tuple(shown)),
        data,
        "Mean over the domains. Accuracy in %; ECE: expected calibration error, from 0 to 1.",
    )

"""What NEO does for accuracy and calibration on each subject."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from neotta.evaluate.comparison import METRICS
from neotta.evaluate.metrics import Interval
from neotta.paper.finding import Finding, Holds, all_hold, gained, together
from neotta.paper.item import Case, Skip, item
from neotta.paper.results import Results
from neotta.paper.tables import Rows, plain
from neotta.paper.words import points
from neotta.report.charts import Ranking, ranking_chart
from neotta.report.figures import Figure
from neotta.report.grids import Table, grid, number

MATCH = 0.005
"""A calibration error that rises by no more than this is matched."""
SHARE = 9 / 12
"""In how many of the paper's settings NEO improves or matches the calibration error."""


class Gain(NamedTuple):
    """What NEO changes on a subject: accuracy and calibration error without it, with it, and their differences.

    `kept` says whether the calibration error is lowered or kept.
    """

    accuracy: tuple[Interval, Interval, Interval]
    error: tuple[Interval, Interval, Interval]
    kept: Holds


def _conclude(finding: Finding, shown: dict[str, Gain]) -> None:
    if shown:
        finding.verdicts = [_holds(list(shown.values()))]
        finding.parts = [_figure(shown), _table(shown)]


@item(
    order=6,
    name="gains",
    title="Gain in accuracy and change of calibration error",
    place="Figure 4a and 4b",
    question="Does NEO raise accuracy and keep predictions calibrated, whatever the model and the data?",
    claim=(
        "NEO raises accuracy on every model and dataset, and lowers or keeps the calibration error in 9 of 12 of them."
    ),
    remarks=(
        "Every seed sees all images, in a different order. Intervals of accuracies are about other images of the kind; "
        "the calibration error has none, since it is not counted image by image.",
        f"The calibration error counts as kept if it rises by at most {MATCH} with every seed, and as raised if it "
        "rises by more with every seed; with one seed that is not known.",
    ),
    runs=lambda setting: setting.full("none", "neo"),
    conclude=_conclude,
)
def show(case: Case) -> Gain:
    """Take the differences on the same samples, averaged over domains."""
    both = [case.results(metric) for metric in ("top1", "ece")]
    if not all("neo" in found.gains for found in both):
        raise Skip
    accuracy, error = ((found.means["none"], found.means["neo"], found.gains["neo"]) for found in both)
    gain = Gain(accuracy, error, _kept(both[1]))
    case.finding.say(
        f"On all images of {case.title}, NEO changes accuracy by {points(gain.accuracy[2])} and the calibration "
        f"error by {number(gain.error[2], METRICS['ece'], '+')}."
    )
    return gain


def _holds(gains: Sequence[Gain]) -> Holds:
    holds = all_hold([gained(gain.accuracy[2]) for gain in gains])
    if holds == "no":
        return holds
    kept, raised = (sum(gain.kept == said for gain in gains) for said in ("yes", "no"))
    enough, possible = kept >= SHARE * len(gains), len(gains) - raised >= SHARE * len(gains)
    return together([holds, "yes" if enough else "unclear" if possible else "no"])


def _kept(found: Results) -> Holds:
    """Whether the calibration error is lowered or kept, whatever the seed: all images are seen with each of them."""
    before, after = found.per_seed("none"), found.per_seed("neo")
    rises = [
        statistics.fmean(new.number - old.number for new, old in zip(after[seed], before[seed], strict=True)) > MATCH
        for seed in after
        if seed in before
    ]
    if len(rises) < 2 or len(set(rises)) > 1:
        return "unclear"
    return "no" if rises[0] else "yes"


def _figure(gains: dict[str, Gain]) -> Figure:
    titles = {title: title.replace(" on ", "\non ") for title in gains}
    accuracy = {titles[title]: gain.accuracy[2][:2] for title, gain in gains.items()}
    error = {titles[title]: gain.error[2][:2] for title, gain in gains.items()}
    rows: Rows = [
        {"subject": title, "metric": metric, **plain(change)}
        for title, gain in gains.items()
        for metric, change in (("top1", gain.accuracy[2]), ("ece", gain.error[2]))
    ]
    return Figure(
        "gains",
        "What NEO changes, by subject",
        ranking_chart(
            Ranking(accuracy, "change of accuracy in points", sign="+", color="neo"),
            Ranking(error, "change of calibration error", 3, "+", color="neo"),
        ),
        rows,
        "Difference between NEO and no adaptation on all images, mean over the domains, with the 95 % interval of "
        "accuracy over images and seeds. Accuracy: to the right is better. Calibration error: to the left is better.",
        (7.0, 1.0 + 0.42 * len(gains)),
    )


def _table(gains: dict[str, Gain]) -> Table:
    columns = [head.format(name) for name in ("accuracy", "ECE") for head in ("{}, none", "{}, neo", "change of {}")]
    metrics = [METRICS["top1"]] * 3 + [METRICS["ece"]] * 3
    signs = ("", "", "+") * 2
    values = {title: (*gain.accuracy, *gain.error) for title, gain in gains.items()}
    texts = {title: list(map(number, found, metrics, signs)) for title, found in values.items()}
    return Table(
        "Accuracy and calibration error, without and with NEO",
        grid("subject", columns, texts),
        [
            {"subject": title, **{name: value.mean for name, value in zip(columns, found, strict=True)}}
            for title, found in values.items()
        ],
        "Mean over the domains. Accuracy in %; ECE: expected calibration error, from 0 to 1.",
    )

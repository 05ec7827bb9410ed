"""Accuracy and calibration on all images of every domain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from neotta.evaluate.estimates import METRICS
from neotta.evaluate.metrics import Interval
from neotta.paper.claims import Holds, all_hold, at_once, called, gained, listed, place_among, points, some, together
from neotta.paper.item import Report, Skip, item, need
from neotta.paper.measured import Measured, PerSeed
from neotta.paper.study import RIVALS, method_of
from neotta.paper.tables import Rows, plain
from neotta.report.charts import Ranking, ranking_chart
from neotta.report.figures import Figure
from neotta.report.grids import Table, grid

MATCH = 0.005
"""A calibration error that rises by no more than this is matched."""
SHARE = 9 / 12
"""In how many of the paper's settings NEO improves or matches the calibration error."""
INTERVALS = (
    "Every seed sees all images, in a different order. Intervals of accuracies are about other images of the kind; "
    "the calibration error has one where records say how sure every answer was."
)


class Gain(NamedTuple):
    """Accuracy and calibration error: without NEO, with it, the difference; whether the error is lowered or kept."""

    accuracy: tuple[Interval, Interval, Interval]
    error: tuple[Interval, Interval, Interval]
    error_kept: Holds


def _conclude(report: Report, shown: dict[str, Gain]) -> None:
    if shown:
        subjects = {setting.title: setting.subject for setting in report.evidence.settings}
        once = {(subjects[title].model, subjects[title].data): gain for title, gain in reversed(shown.items())}
        report.concluded = _gains_hold(list(once.values()))
        report.parts = [_gains_figure(shown), _gains_table(shown)]


@item(
    title="Gain in accuracy and change of calibration error",
    place="Figure 4a and 4b",
    claim=(
        "NEO raises accuracy on every model and dataset, and lowers or keeps the calibration error in 9 of 12 of them."
    ),
    remarks=(
        INTERVALS,
        f"The calibration error counts as kept if it rises by at most {MATCH} with every seed, and as raised if it "
        "rises by more with every seed; where it has an interval, that decides.",
    ),
    runs=lambda setting: setting.full("none", "neo"),
    conclude=_conclude,
)
def gains(report: Report) -> Gain:
    """Does NEO raise accuracy and keep predictions calibrated, whatever the model and the data?"""
    both = [report.results(metric) for metric in ("top1", "ece")]
    if not all("neo" in results.gaps for results in both):
        raise Skip
    accuracy, error = ((results.means["none"], results.means["neo"], results.gaps["neo"]) for results in both)
    kept = _kept(error[2], _changes(both[1].per_seed("neo"), both[1].per_seed("none")))
    report.say_all(
        f"On all images of {report.title}, NEO changes accuracy by {points(accuracy[2])} and the calibration "
        f"error by {METRICS['ece'].text(error[2], '+')}.",
        at_once([gained(accuracy[2]), kept]),
    )
    return Gain(accuracy, error, kept)


def _kept(gap: Interval, rises: Sequence[float]) -> Holds:
    """Whether the error rises by no more than what counts as kept: by its interval, or without one by every seed."""
    if math.isnan(gap.half_width):
        return _with_every_seed([rise <= MATCH for rise in rises])
    return "yes" if gap.ends[1] <= MATCH else "no" if gap.ends[0] > MATCH else "unclear"


def _changes(mine: PerSeed, theirs: PerSeed) -> list[float]:
    shared = [zip(mine[seed], theirs[seed], strict=True) for seed in mine if seed in theirs]
    return [fmean(one.ece - other.ece for one, other in pairs) for pairs in shared]


def _with_every_seed(facts: Sequence[bool]) -> Holds:
    if len(facts) < 2 or len(set(facts)) > 1:
        return "unclear"
    return "yes" if facts[0] else "no"


def _gains_hold(gains: Sequence[Gain]) -> Holds:
    holds = all_hold([gained(gain.accuracy[2]) for gain in gains])
    if holds == "no":
        return holds
    matched, raised = (sum(gain.error_kept == said for gain in gains) for said in ("yes", "no"))
    enough, possible = matched >= SHARE * len(gains), len(gains) - raised >= SHARE * len(gains)
    return together([holds, "yes" if enough else "unclear" if possible else "no"])


def _gains_figure(gains: dict[str, Gain]) -> Figure:
    titled = {title.replace(" on ", "\non "): gain for title, gain in gains.items()}
    accuracy = {title: gain.accuracy[2] for title, gain in titled.items()}
    error = {title: gain.error[2] for title, gain in titled.items()}
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


def _gains_table(gains: dict[str, Gain]) -> Table:
    columns = [head.format(name) for name in ("accuracy", "ECE") for head in ("{}, none", "{}, neo", "change of {}")]
    metrics = [METRICS["top1"]] * 3 + [METRICS["ece"]] * 3
    values = {title: (*gain.accuracy, *gain.error) for title, gain in gains.items()}
    how = list(zip(metrics, ("", "", "+") * 2, strict=True))
    texts = {title: [each.text(value, sign) for value, (each, sign) in zip(row, how, strict=True)]
             for title, row in values.items()}  # fmt: skip
    means = {title: {name: each.mean for name, each in zip(columns, row, strict=True)} for title, row in values.items()}
    return Table(
        "Accuracy and calibration error, without and with NEO",
        grid("subject", columns, texts),
        [{"subject": title, **row} for title, row in means.items()],
        "Mean over the domains. Accuracy in %; ECE: expected calibration error, from 0 to 1.",
    )


@item(
    title="Calibration error of every method",
    place="Figure 4c",
    claim="On ImageNet-C with ViT-Small, NEO has a lower calibration error than all seven other methods.",
    rivals=RIVALS,
    remarks=("All images of every domain, as in the paper: with fewer samples this error comes out larger.",),
    runs=lambda setting: setting.full(),
)
def calibration(report: Report) -> None:
    """Which method leaves the model best calibrated?"""
    results = report.results("ece")
    report.ranking(
        "calibration",
        "calibration error of every method",
        dict(sorted(need(results.means).items(), key=lambda entry: entry[1].mean)),
        "expected calibration error",
        f"Expected calibration error over 15 bins on all {report.setting.images} images of each domain, mean over the "
        f"domains and {some(len(results.seeds), 'seed')}. To the left is better.{results.uneven}",
        digits=3,
    )
    report.comparison(results, gaps=False)
    with_seeds = [label for label in results.means if results.per_seed(label).keys() & results.per_seed("neo").keys()]
    report.say(*_lowest(results), with_seeds)
    report.note(*report.setting.left_out_note())


def _lowest(results: Measured) -> tuple[str, Holds]:
    means, metric = results.means, METRICS["ece"]
    errors = {label: round(mean.mean, metric.digits) for label, mean in means.items()}
    ranked = sorted(errors, key=errors.__getitem__)
    if "neo" not in means or len(ranked) < 2:
        return f"{called(ranked[0])} has the lowest calibration error ({errors[ranked[0]]:.3f})", "unclear"
    before = [label for label in ranked if errors[label] < errors["neo"]]
    tied = [label for label in ranked if errors[label] == errors["neo"] and label != "neo"]
    rival = next(label for label in ranked if label != "neo")
    answer = (
        f"the calibration error with NEO on all images is {metric.text(means['neo'])}, "
        f"{place_among(before, tied, 'the lowest')} of {len(ranked)} methods; that of {called(rival)} is "
        f"{errors[rival]:.3f}"
    )
    rivals = [results.per_seed(label) for label in ranked if method_of(label) in RIVALS]
    changes = [_changes(results.per_seed("neo"), values) for values in rivals]
    below = [_with_every_seed([change < 0 for change in each]) for each in changes]
    return answer, "no" if "no" in below else "yes" if set(below) == {"yes"} else "unclear"


@item(
    title="Accuracy and calibration error on all images",
    place="Appendix, results on full datasets",
    claim="NEO raises the accuracy on the whole of every dataset.",
    runs=lambda setting: setting.full(),
)
def full(report: Report) -> None:
    """What is left of the gain when a method sees all images of a domain?"""
    changes, held = [], None
    named = (("top1", "accuracy", " points"), ("ece", "calibration error", ""), ("brier", "Brier score", ""))
    for metric, words, unit in named:
        results = Measured.of(report.records, metric)
        if results is None:
            continue
        report.comparison(results, heading=words, gaps=False)
        if "neo" in results.gaps:
            changes.append(f"{words} by {METRICS[metric].text(results.gaps['neo'], '+')}{unit}")
            held = gained(results.gaps["neo"]) if metric == "top1" else held
    if changes:
        report.say_all(f"On all images of {report.title}, NEO changes {listed(changes)}.", held)
    report.note(INTERVALS, *report.setting.left_out_note())

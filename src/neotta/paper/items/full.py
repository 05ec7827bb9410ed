"""Accuracy and calibration on whole datasets."""

from __future__ import annotations

from neotta.evaluate.comparison import METRICS
from neotta.paper.finding import gained
from neotta.paper.item import Case, item
from neotta.paper.results import Results
from neotta.paper.words import listed
from neotta.report.grids import number


@item(
    order=8,
    name="full",
    title="Accuracy and calibration error on all images",
    place="Appendix, results on full datasets",
    question="What is left of the gain when a method sees all images of a domain?",
    claim="NEO raises the accuracy on the whole of every dataset.",
    runs=lambda setting: setting.full(),
)
def show(case: Case) -> None:
    """Compare accuracies, then calibration errors."""
    changes, held = [], None
    for metric, words, unit in (("top1", "accuracy", " points"), ("ece", "calibration error", "")):
        found = Results.of(case.records, metric)
        if found is None:
            continue
        case.comparison(found, heading=words, gaps=False)
        if "neo" in found.gains:
            changes.append(f"{words} by {number(found.gains['neo'], METRICS[metric], '+')}{unit}")
            held = gained(found.gains["neo"]) if metric == "top1" else held
    if changes:
        case.finding.say(f"On all images of {case.title}, NEO changes {listed(changes)}.", held)
    case.note(
        "Every seed sees all images, in a different order. Intervals of accuracies are about other images of the kind; "
        "the calibration error has none, since it is not counted image by image.",
        *case.setting.left_out_note(),
    )

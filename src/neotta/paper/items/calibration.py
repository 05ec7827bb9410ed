"""How well calibrated the predictions of each method are."""

from __future__ import annotations

from statistics import fmean

from neotta.evaluate.comparison import METRICS
from neotta.paper.finding import Holds
from neotta.paper.item import Case, Skip, item
from neotta.paper.results import PerSeed, Results
from neotta.paper.words import listed, some
from neotta.report.grids import number


@item(
    order=7,
    name="calibration",
    title="Calibration error of every method",
    place="Figure 4c",
    question="Which method leaves the model best calibrated?",
    claim="On ImageNet-C with ViT-Small, NEO has the lowest calibration error of all methods.",
    remarks=(
        "All images of every domain, as in the paper: with fewer samples this error comes out larger. It has no "
        "interval, since it is not counted image by image.",
    ),
    runs=lambda setting: setting.full(),
)
def show(case: Case) -> None:
    """Rank the methods by their calibration error."""
    found = case.results("ece")
    if not found.means:
        raise Skip
    case.ranking(
        "calibration",
        "calibration error of every method",
        dict(sorted(found.means.items(), key=lambda entry: entry[1].mean)),
        "expected calibration error",
        f"Expected calibration error over 15 bins on all {case.setting.images} images of each domain, mean over the "
        f"domains and {some(len(found.block.seeds), 'seed')}. To the left is better.{found.uneven}",
        digits=3,
    )
    case.comparison(found, gaps=False)
    case.say(*_judge(found))
    case.note(*case.setting.left_out_note())


def _judge(found: Results) -> tuple[str, Holds]:
    """One sentence on NEO among the methods, and whether it has the lowest error with every seed."""
    means, metric = found.means, METRICS["ece"]
    ranked = sorted(means, key=lambda label: means[label].mean)
    if "neo" not in means or len(ranked) < 2:
        return f"{ranked[0]} has the lowest calibration error ({means[ranked[0]].mean:.3f})", "unclear"
    place = ranked.index("neo")
    rival = ranked[1] if place == 0 else ranked[0]
    rank = "the lowest" if place == 0 else f"number {place + 1}, after {listed(ranked[:place])},"
    answer = (
        f"the calibration error with NEO on all images is {number(means['neo'], metric)}, {rank} of {len(ranked)} "
        f"methods; that of {rival} is {means[rival].mean:.3f}"
    )
    against = [_below(found.per_seed("neo"), found.per_seed(label)) for label in ranked if label != "neo"]
    return answer, "no" if "no" in against else "yes" if set(against) == {"yes"} else "unclear"


def _below(mine: PerSeed, theirs: PerSeed) -> Holds:
    """Whether one error is below another with every seed that both have; unclear with a single one.

    Every seed sees all images, so that only the order differs between them.
    """
    shared = [seed for seed in mine if seed in theirs]
    lower = {fmean(v.number for v in mine[seed]) < fmean(v.number for v in theirs[seed]) for seed in shared}
    if len(shared) < 2 or len(lower) > 1:
        return "unclear"
    return "yes" if True in lower else "no"

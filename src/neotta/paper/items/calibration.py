"""How well calibrated the predictions of each method are."""

from __future__ import annotations

from neotta.evaluate.comparison import METRICS
from neotta.paper.finding import Holds
from neotta.paper.item import Case, Skip, item
from neotta.paper.results import Gaps, Results, with_verdict
from neotta.paper.words import doubt, listed
from neotta.report.grids import number


@item(
    order=7,
    name="calibration",
    title="Calibration error of every method",
    place="Figure 4c",
    question="Which method leaves the model best calibrated?",
    claim="On ImageNet-C with ViT-Small, NEO has the lowest calibration error of all methods.",
    remarks=(
        "With fewer samples this error comes out larger, for all methods alike. The paper uses whole datasets; here "
        "every method sees the same samples.",
    ),
    runs=lambda setting: setting.online(clean=True),
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
        f"Expected calibration error over 15 bins, mean over the domains, {found.block.conditions.samples} samples "
        f"each, with its 95 % interval over images and seeds. To the left is better.{found.uneven}",
        digits=3,
    )
    case.comparison(found, gaps=False)
    case.say(*_judge(found, case.against("neo", "ece")))


def _judge(found: Results, others: Gaps) -> tuple[str, Holds]:
    """One sentence on NEO among the methods, and whether it is best, from how the others differ from it."""
    means, metric = found.means, METRICS["ece"]
    ranked = sorted(means, key=lambda label: means[label].mean)
    if "neo" not in means or len(ranked) < 2:
        return f"{ranked[0]} has the lowest calibration error ({means[ranked[0]].mean:.3f})", "unclear"
    place = ranked.index("neo")
    rival = ranked[1] if place == 0 else ranked[0]
    rank = "the lowest" if place == 0 else f"number {place + 1}, after {listed(ranked[:place])},"
    size, chance = "which differs by an unknown amount", ""
    if rival in others:
        size, chance = number(others[rival].interval, metric, "+"), doubt(others[rival].interval)
    answer = (
        f"the calibration error with NEO is {number(means['neo'], metric)}, {rank} of {len(ranked)} methods; {rival} "
        f"is at {means[rival].mean:.3f}, {size} against NEO{chance}"
    )
    if with_verdict(others, "helps"):
        return answer, "no"
    first = len(with_verdict(others, "hurts")) == len(ranked) - 1  # of the others: a larger error is worse
    return answer, "yes" if first else "unclear"

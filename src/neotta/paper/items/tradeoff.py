"""Time, memory and accuracy of the methods in one picture."""

from __future__ import annotations

from neotta.evaluate.metrics import Interval
from neotta.evaluate.records import Record
from neotta.paper import costing
from neotta.paper.finding import Holds
from neotta.paper.item import Case, Skip, item
from neotta.paper.results import Gaps, with_verdict
from neotta.paper.tables import known
from neotta.paper.words import listed, some
from neotta.report.scatter import Point, scatter_chart


@item(
    order=2,
    name="tradeoff",
    title="Accuracy against time and memory",
    place="Figure 2b",
    question="Which method gives how much accuracy for how much time and memory?",
    claim="NEO is ahead of all other methods in accuracy, in time and in memory at once.",
    remarks=(
        "Time and memory are measured with random images, each method with default options in a process of its own. "
        + costing.SAME,
    ),
    runs=lambda setting: setting.online(clean=True),
    costs=lambda setting: setting.names,
)
def show(case: Case) -> None:
    """Put the accuracy of each method beside its costs."""
    found = case.results()
    every = case.evidence.costs(case.setting, case.setting.names)
    names = {label: label.split()[0].partition("@")[0] for label in found.means}
    costs = {label: every[name] for label, name in names.items() if name in every}
    if not costs:
        raise Skip
    means, times = found.means, costing.milliseconds(costs)
    points = [
        Point(label, times[label], means[label].mean, costing.mebibytes(cost), means[label].half_width)
        for label, cost in costs.items()
    ]
    conditions = f"{some(len(found.block.averaged) or 1, 'domain')}, {found.block.conditions.samples} samples each"
    case.figure(
        "tradeoff",
        "accuracy against time and memory",
        scatter_chart(points, x="time per image in ms", y="mean accuracy in %", sizes="peak memory", unit="MiB"),
        [
            {"method": point.name, "accuracy": point.y, "half_width": known(point.half_width)}
            | {field: costs[point.name][field] for field in ("seconds_per_image", "peak_memory")}
            for point in points
        ],
        f"Accuracy: mean over the domains ({conditions}), with its 95 % interval over images and seeds. Time: median "
        f"on {costing.device(next(iter(costs.values())))}, batches of {case.setting.study.batch_size}. The area of a "
        f"point is the peak memory of the process. Up and to the left is better.{found.uneven}",
        height=4.2,
    )
    case.say(*_judge(means, costs, case.against("neo")))
    case.note(*(f"{name} has no point: its cost is not known." for name in found.block.methods if name not in costs))


def _judge(means: dict[str, Interval], costs: dict[str, Record], gaps: Gaps) -> tuple[str, Holds]:
    """One sentence on NEO among the others, and whether it is ahead in everything.

    Args:
        means: Accuracies.
        costs: Time and memory.
        gaps: How the accuracies of the others differ from that of NEO, on the same samples.
    """
    others = [label for label in costs if label not in ("neo", "none")]
    if "neo" not in costs or not others:
        return "NEO and another method are needed to compare, and one is missing", "unclear"
    ahead = {
        "more accurate": [label for label in with_verdict(gaps, "helps") if label in others],
        "faster": costing.ahead(costs, "neo", costing.faster),
        "leaner": costing.ahead(costs, "neo", costing.leaner),
    }
    said = "; ".join(f"{what}: {listed(names)}" for what, names in ahead.items())
    lost = sum(bool(names) for names in ahead.values())
    behind = with_verdict(gaps, "hurts")
    level = [label for label in others if label not in (*behind, *ahead["more accurate"])]
    chance = f"; it is unclear whether NEO is more accurate than {listed(level)}" if level else ""
    answer = (
        f"NEO reaches {means['neo'].mean:.1f} % in {costing.milliseconds(costs)['neo']:.3g} ms per image with "
        f"{costing.memory_words(costs['neo'])} at the peak; of the other {len(others)} methods, {said}{chance}"
    )
    if "none" in costs and (busy := costing.busy(costs["none"])):
        return f"{answer}.{busy.rstrip('.')}", "unclear"
    if lost == 0:
        return answer, "unclear" if level else "yes"
    return answer, "no" if lost == len(ahead) else "partly"

"""Time, memory and accuracy of the methods in one picture."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from neotta.evaluate.comparison import Block, Difference
from neotta.evaluate.metrics import Interval
from neotta.evaluate.plan import Plan
from neotta.evaluate.records import Record
from neotta.paper import comparing, costing
from neotta.paper.evidence import Evidence
from neotta.paper.item import Finding, Holds, Item, Rows
from neotta.paper.study import Setting
from neotta.report.figures import Figure
from neotta.report.scatter import Point, scatter

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas


class Tradeoff(Item):
    """Figure 2b."""

    name = "figure-tradeoff"
    title = "Accuracy against time and memory"
    place = "Figure 2b"
    question = "Which method gives how much accuracy for how much time and memory?"
    claim = "NEO is ahead of all other methods in accuracy, in time and in memory at once."

    def plans(self, setting: Setting) -> list[Plan]:
        """The runs of the main table."""
        return setting.online(clean=True)

    def costs(self, setting: Setting) -> list[str]:
        """Those of all methods."""
        return setting.names

    def find(self, evidence: Evidence) -> Finding:
        """Put the accuracy of each method beside its costs."""
        finding = Finding()
        for setting in evidence.settings:
            records = evidence.records(*self.plans(setting))
            block = comparing.fullest(comparing.compared(records))
            costs = evidence.costs(setting, setting.names)
            known = _known(block, costs) if block else {}
            if block is None or not known:
                continue
            finding.parts.append(_figure(setting, block, known))
            finding.say(*_judge(setting, comparing.means(block), known, comparing.against(records, "neo")))
            finding.notes += [
                f"{name} has no point: its cost is not known." for name in block.methods if name not in known
            ]
        finding.notes = list(dict.fromkeys([*finding.notes, *(NOTES if finding.said else ())]))
        return finding


NOTES = (
    "Time and memory are measured with random images, each method with default options in a process of its own. "
    f"Times within a factor of {costing.SAME_TIME} count as the same, and so do peaks within a factor of "
    f"{costing.SAME_MEMORY} or {costing.NOISE // costing.MIB} MiB.",
)


def _known(block: Block, costs: dict[str, Record]) -> dict[str, Record]:
    """The costs of the methods of a block, by label: those of the method with default options."""
    names = {label: label.split()[0].partition("@")[0] for label in comparing.means(block)}
    return {label: costs[name] for label, name in names.items() if name in costs}


def _figure(setting: Setting, block: Block, costs: dict[str, Record]) -> Figure:
    means, times = comparing.means(block), costing.milliseconds(costs)
    points = [
        Point(
            label,
            times[label],
            means[label].mean,
            costing.mebibytes(cost),
            means[label].half_width,
        )
        for label, cost in costs.items()
    ]
    count = len(block.averaged) or 1
    conditions = f"{count} {'domain' if count == 1 else 'domains'}, {block.conditions.samples} samples each"
    return Figure(
        comparing.file_name("tradeoff", setting.title),
        f"{setting.title}: accuracy against time and memory",
        functools.partial(_draw, points),
        _rows(points, costs),
        f"Accuracy: mean over the domains ({conditions}), with its 95 % interval over seeds. Time: median on "
        f"{costing.device(next(iter(costs.values())))}, batches of {setting.study.batch_size}. The area of a point is "
        f"the peak memory of the process. Up and to the left is better.{comparing.uneven(block)}",
        (7.0, 4.2),
    )


def _draw(points: Sequence[Point], canvas: Canvas) -> None:
    axes = canvas.subplots()
    axes.set_xlabel("time per image in ms")
    axes.set_ylabel("mean accuracy in %")
    scatter(canvas, axes, points, sizes="peak memory", unit="MiB")


def _rows(points: Sequence[Point], costs: dict[str, Record]) -> Rows:
    return [
        {
            "method": point.name,
            "accuracy": point.y,
            "half_width": None if math.isnan(point.half_width) else point.half_width,
            "seconds_per_image": costs[point.name]["seconds_per_image"],
            "peak_memory": costs[point.name]["peak_memory"],
        }
        for point in points
    ]


def _judge(
    setting: Setting, means: dict[str, Interval], costs: dict[str, Record], gaps: dict[str, Difference]
) -> tuple[str, Holds]:
    """One sentence on NEO among the others, and whether it is ahead in everything.

    Args:
        setting: The subject.
        means: Accuracies.
        costs: Time and memory.
        gaps: How the accuracies of the others differ from that of NEO, on the same samples.
    """
    others = [label for label in costs if label not in ("neo", "none")]
    if "neo" not in costs or not others:
        return f"On {setting.title}, NEO and another method are needed to compare, and one is missing.", "unclear"
    ahead = {
        "more accurate": [label for label in comparing.with_verdict(gaps, "helps") if label in others],
        "faster": costing.ahead(costs, "neo", costing.faster),
        "leaner": costing.ahead(costs, "neo", costing.leaner),
    }
    said = "; ".join(f"{what}: {comparing.listed(names)}" for what, names in ahead.items())
    lost = sum(bool(names) for names in ahead.values())
    behind = comparing.with_verdict(gaps, "hurts")
    level = [label for label in others if label not in (*behind, *ahead["more accurate"])]
    chance = f"; whether NEO is more accurate than {comparing.listed(level)} cannot be told" if level else ""
    time = costing.milliseconds(costs)["neo"]
    answer = (
        f"On {setting.title}, NEO reaches {means['neo'].mean:.1f} % in {time:.3g} ms per image with "
        f"{costing.memory_words(costs['neo'])} at the peak; of the other {len(others)} methods, {said}{chance}."
    )
    if "none" in costs and (busy := costing.busy(costs["none"])):
        return answer + busy, "unclear"
    if lost == 0:
        return answer, "unclear" if level else "yes"
    return answer, "no" if lost == len(ahead) else "partly"

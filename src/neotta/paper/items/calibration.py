"""How well calibrated the predictions of each method are."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING

from neotta.evaluate.comparison import METRICS, Block
from neotta.evaluate.metrics import Interval
from neotta.evaluate.plan import Plan
from neotta.paper import comparing
from neotta.paper.evidence import Evidence
from neotta.paper.item import Finding, Holds, Item
from neotta.paper.study import Setting
from neotta.report.figures import Figure, ranking
from neotta.report.grids import number

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas


class Calibration(Item):
    """Figure 4c."""

    name = "figure-calibration"
    title = "Calibration error of every method"
    place = "Figure 4c"
    question = "After which method do the model's probabilities tell best how often it is right?"
    claim = "On ImageNet-C with ViT-Small, NEO has the lowest calibration error of all methods."

    def plans(self, setting: Setting) -> list[Plan]:
        """The runs of the main table."""
        return setting.online(clean=True)

    def find(self, evidence: Evidence) -> Finding:
        """Rank the methods by their calibration error."""
        finding = Finding()
        for setting in evidence.settings:
            records = evidence.records(*self.plans(setting))
            comparison = comparing.compared(records, "ece")
            block = comparing.fullest(comparison)
            if comparison is None or block is None or not comparing.means(block):
                continue
            finding.parts += [_figure(setting, block), *comparing.tables(comparison, setting.title, gaps=False)]
            finding.say(*_judge(setting, block, comparing.fullest(comparing.compared(records, "ece", "neo"))))
            finding.notes += comparing.plain_notes(comparison)
        finding.notes.append(
            "The fewer the samples, the larger this error comes out, for all methods alike; the paper takes whole "
            "datasets, here every method sees the same samples."
        )
        finding.notes = list(dict.fromkeys(finding.notes))
        return finding


def _figure(setting: Setting, block: Block) -> Figure:
    means = comparing.means(block)
    ordered = dict(sorted(means.items(), key=lambda entry: entry[1].mean))
    return Figure(
        comparing.file_name("calibration", setting.title),
        f"{setting.title}: calibration error of every method",
        functools.partial(_draw, ordered),
        [{"method": label, **comparing.plain(mean)} for label, mean in ordered.items()],
        f"Expected calibration error over 15 bins, mean over the domains, {block.conditions.samples} samples each, "
        f"with its 95 % interval over seeds. To the left is better.{comparing.uneven(block)}",
        (7.0, 0.8 + 0.28 * len(means)),
    )


def _draw(means: Mapping[str, Interval], canvas: Canvas) -> None:
    axes = canvas.subplots()
    values = {label: mean.mean for label, mean in means.items()}
    ranking(axes, values, {label: mean.half_width for label, mean in means.items()}, digits=3)
    axes.set_xlabel("expected calibration error")


def _judge(setting: Setting, block: Block, against: Block | None) -> tuple[str, Holds]:
    """One sentence on NEO among the methods, and whether it is best.

    Args:
        setting: The subject.
        block: What was measured.
        against: The same with NEO as the baseline of all differences.
    """
    means = comparing.means(block)
    ranked = sorted(means, key=lambda label: means[label].mean)
    if "neo" not in means or against is None or len(ranked) < 2:
        best = ranked[0]
        return f"On {setting.title}, {best} has the lowest calibration error ({means[best].mean:.3f}).", "unclear"
    place = ranked.index("neo")
    rival = ranked[1] if place == 0 else ranked[0]
    gap = comparing.mean_gaps(against).get(rival)
    rank = "the lowest" if place == 0 else f"number {place + 1}, after {comparing.listed(ranked[:place])},"
    size = "which differs by an unknown amount" if gap is None else number(gap.interval, METRICS["ece"], "+")
    doubt = "" if gap is None else comparing.doubt(gap.interval)
    answer = (
        f"On {setting.title}, the calibration error with NEO is {number(means['neo'], METRICS['ece'])}, {rank} of "
        f"{len(ranked)} methods; {rival} is at {means[rival].mean:.3f}, {size} against NEO{doubt}."
    )
    gaps = comparing.mean_gaps(against)
    if comparing.with_verdict(gaps, "helps"):
        return answer, "no"
    first = len(comparing.with_verdict(gaps, "hurts")) == len(ranked) - 1  # of the others: a larger error is worse
    return answer, "yes" if first else "unclear"

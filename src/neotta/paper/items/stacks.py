"""NEO in front of other methods: does the pair do better than each alone?"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from neotta.evaluate.comparison import METRICS, Block, Difference
from neotta.evaluate.metrics import Interval
from neotta.evaluate.plan import Plan
from neotta.evaluate.records import Record
from neotta.paper import comparing
from neotta.paper.evidence import Evidence
from neotta.paper.item import Finding, Item, Rows, Table
from neotta.paper.study import Setting
from neotta.report.figures import Figure, ranking
from neotta.report.grids import Entry, Grid, number

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

STACKS = ("neo+lame", "neo+t3a")

Gaps = dict[tuple[str, str], Difference]
"""Differences between a stack and one of its methods alone, by both."""


class Stacks(Item):
    """What becomes of LAME and T3A when NEO re-centers the embeddings that they read."""

    name = "stacked-methods"
    title = "NEO in front of other methods"
    question = "Does a method that reads embeddings gain when NEO re-centers them first?"

    def plans(self, setting: Setting) -> list[Plan]:
        """The stacks that work here, and what they are made of."""
        stacks = [stack for stack in STACKS if setting.can(stack)]
        parts = [part for stack in stacks for part in stack.split("+")]
        return [setting.plan(*dict.fromkeys(["none", *parts, *stacks]), clean=True)] if stacks else []

    def find(self, evidence: Evidence) -> Finding:
        """Take the differences between each stack and its methods on the same samples."""
        finding = Finding(claimed=False)
        for setting in evidence.settings:
            records = evidence.records(*self.plans(setting))
            comparison = comparing.compared(records)
            block = comparing.fullest(comparison)
            gaps = _gaps(records)
            if comparison is None or block is None or not gaps:
                continue
            finding.parts += [_figure(setting, block), _table(setting, comparing.means(block), gaps)]
            finding.parts += comparing.tables(comparison, setting.title, gaps=False)
            finding.say(_answer(setting, comparing.means(block), gaps))
            finding.notes += comparing.plain_notes(comparison)
        finding.notes = list(dict.fromkeys(finding.notes))
        return finding


def _gaps(records: Sequence[Record]) -> Gaps:
    found: Gaps = {}
    for stack in STACKS:
        for part in stack.split("+"):
            block = comparing.fullest(comparing.compared(records, baseline=part))
            gap = comparing.mean_gaps(block).get(stack) if block else None
            if gap is not None:
                found[stack, part] = gap
    return found


def _answer(setting: Setting, means: Mapping[str, Interval], gaps: Gaps) -> str:
    said = []
    for stack in dict.fromkeys(stack for stack, _ in gaps):
        against = [
            f"{comparing.gain_words(gap.interval)} against {part} alone ({gap.verdict})"
            for (name, part), gap in gaps.items()
            if name == stack
        ]
        level = f"{means[stack].mean:.1f} %, " if stack in means else ""
        said.append(f"{stack} reaches {level}{comparing.listed(against)}")
    return f"On {setting.title}, {'; '.join(said)}."


def _table(setting: Setting, means: Mapping[str, Interval], gaps: Gaps) -> Table:
    metric = METRICS["top1"]
    shown, data = [], []
    for (stack, part), gap in gaps.items():
        both, alone = means.get(stack, comparing.NOTHING), means.get(part, comparing.NOTHING)
        texts = (number(both, metric), number(alone, metric), f"{number(gap.interval, metric, '+')} {gap.verdict}")
        shown.append((f"{stack} against {part}", tuple(Entry(text) for text in texts)))
        data.append({"stack": stack, "part": part, **comparing.plain(gap.interval), "verdict": gap.verdict})
    caption = "Mean accuracy in % over the domains, and the difference on the same samples, with what it says."
    grid = Grid("pair", ("stack", "alone", "difference"), tuple(shown))
    return Table(f"{setting.title}: stacks against their methods alone", grid, data, caption)


def _figure(setting: Setting, block: Block) -> Figure:
    gains = {label: gap.interval for label, gap in comparing.mean_gaps(block).items()}
    data: Rows = [{"method": label, **comparing.plain(gain)} for label, gain in gains.items()]
    return Figure(
        comparing.file_name("stacks", setting.title),
        f"{setting.title}: gain over no adaptation, alone and stacked",
        functools.partial(_draw, gains),
        data,
        "Points of accuracy over no adaptation on the same samples, mean over the domains, with its 95 % interval over "
        "seeds.",
        (7.0, 0.8 + 0.3 * len(gains)),
    )


def _draw(gains: Mapping[str, Interval], canvas: Canvas) -> None:
    axes = canvas.subplots()
    values = {label: gain.mean for label, gain in gains.items()}
    ranking(axes, values, {label: gain.half_width for label, gain in gains.items()}, sign="+")
    axes.set_xlabel("change of mean accuracy in points")

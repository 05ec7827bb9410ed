"""Adaptation that is never reset while domain follows domain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from neotta.evaluate.comparison import Block, Difference
from neotta.evaluate.metrics import Interval, interval
from neotta.evaluate.plan import MethodPlan, Plan
from neotta.paper import comparing, curves
from neotta.paper.evidence import Evidence
from neotta.paper.item import Finding, Holds, Item
from neotta.paper.study import Setting
from neotta.report.figures import Figure, legend, lines, ranking

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

OURS = "neo-continual"


class Continual(Item):
    """Figure 5c, and the figures over the domain index in the appendix."""

    name = "figure-continual"
    title = "Domain after domain, without a reset"
    place = "Figure 5c; over the domain index in the appendix"
    question = "Which methods still help when domains follow one another without notice?"
    claim = "NEO-Continual gains accuracy, more of it than CoTTA, and only Surgeon gains more."

    def plans(self, setting: Setting) -> list[Plan]:
        """All domains in a row, in an order that depends on the seed."""
        if len(setting.domains) < 2:
            return []
        known = {MethodPlan.parse(method).method for method in setting.methods}
        added = [method for method in ("none", OURS) if method not in known]
        return setting.online(*setting.methods, *added, protocol="continual")

    def find(self, evidence: Evidence) -> Finding:
        """Compare mean gains, and follow them over the index of the domain."""
        finding = Finding()
        for setting in evidence.settings:
            plans = self.plans(setting)
            if not plans:
                finding.notes.append(f"{setting.title}: has one domain, and this needs several.")
            records = evidence.records(*plans)
            comparison = comparing.compared(records)
            block = comparing.fullest(comparison)
            if comparison is None or block is None or not comparing.mean_gaps(block):
                continue
            gaps = {label: gap.interval for label, gap in comparing.mean_gaps(block).items()}
            path = over_index(block, sequences(evidence, setting, plans))
            finding.parts += [_bars(setting, block, gaps), _over_index(setting, path)]
            finding.parts += comparing.tables(comparison, setting.title)
            others = _of_others(comparing.against(records, OURS))
            sure = comparing.surest(comparison, OURS) or block
            ours = comparing.mean_gaps(sure).get(OURS)
            if ours is None:
                best = max(gaps, key=lambda label: gaps[label].mean)
                finding.say(f"On {setting.title}, {best} gains most: {comparing.gain_words(gaps[best])}.", "unclear")
            else:
                answer = _answer(setting, ours.interval, gaps, others, comparing.extents(sure, block))
                finding.say(answer, _holds(ours.interval, others))
            finding.notes += [f"{method} was left out: {reason}" for method, reason in setting.left_out.items()]
            finding.notes += curves.failures(comparison)
        return finding


def sequences(evidence: Evidence, setting: Setting, plans: Sequence[Plan]) -> dict[int, tuple[str, ...]]:
    """The order of the domains for each seed."""
    bench = evidence.bench(setting)
    runs = {run.seed: run for plan in plans for run in plan.runs(setting.domains)}
    return {seed: bench.phases(run)[0].stream.domains for seed, run in runs.items()}


def over_index(block: Block, orders: Mapping[int, Sequence[str]]) -> dict[str, list[curves.Point]]:
    """Mean over seeds of what each method reaches in the first, second, ... domain of the sequence.

    Only over the seeds that all methods have, because others meet the domains in another order.
    """
    found: dict[str, list[curves.Point]] = {}
    having = [seeds for label in block.methods if (seeds := comparing.seeds_of(block, label))]
    shared = [seed for seed in block.seeds if all(seed in seeds for seeds in having)] or block.seeds
    for label in block.methods:
        for index in range(len(block.domains)):
            places = [(orders[seed][index], seed) for seed in shared]
            mine = {place: value for place in places if (value := _value(block, label, *place)) is not None}
            gains = [
                value - base
                for place, value in mine.items()
                if label != block.baseline and (base := _value(block, block.baseline, *place)) is not None
            ]
            if mine:
                point = curves.Point(index + 1, interval(list(mine.values())), interval(gains))
                found.setdefault(label, []).append(point)
    return found


def _value(block: Block, label: str | None, domain: str, seed: int) -> float | None:
    cell = block.cells.get((domain, label or ""))
    return None if cell is None or seed not in cell.values else cell.values[seed].number


def _bars(setting: Setting, block: Block, gaps: Mapping[str, Interval]) -> Figure:
    ranked = sorted(gaps, key=lambda label: -gaps[label].mean)

    def draw(canvas: Canvas) -> None:
        axes = canvas.subplots()
        means, halves = ({label: gaps[label][part] for label in ranked} for part in (0, 1))
        ranking(axes, means, halves, sign="+")
        axes.set_xlabel("gain over no adaptation (points of accuracy)")

    return Figure(
        comparing.file_name("continual gain", setting.title),
        f"{setting.title}: mean gain over {len(block.domains)} domains in a row",
        draw,
        [{"method": label, **comparing.plain(gaps[label])} for label in ranked],
        f"{block.conditions.samples} samples of each domain, no reset.{comparing.seeds(block)}",
        (7.0, 0.9 + 0.28 * len(ranked)),
    )


def _over_index(setting: Setting, path: curves.Curves) -> Figure:
    def draw(canvas: Canvas) -> None:
        upper, lower = canvas.subplots(2, 1, sharex=True)
        lines(upper, {label: curves.means_of(points)._replace(half_width=None) for label, points in path.items()})
        gaining = {label: curves.gains_of(points) for label, points in path.items() if curves.gains(points)}
        lines(lower, {label: points._replace(half_width=None) for label, points in gaining.items()})
        upper.set_ylabel("accuracy (%)")
        lower.set_ylabel("gain over none (points)")
        lower.set_xlabel("place of the domain in the sequence")
        lower.set_xticks(range(1, 1 + max(len(points) for points in path.values())))
        legend(canvas, upper)

    return Figure(
        comparing.file_name("continual index", setting.title),
        f"{setting.title}: accuracy over the index of the domain",
        draw,
        curves.rows("index", path),
        "Mean over the seeds that all methods have, each with its own order of the domains, so the accuracy of all "
        "methods goes up and down with the domains met; the gain shows whether a method holds out.",
        (7.0, 5.2),
    )


def _of_others(gaps: Mapping[str, Difference]) -> dict[str, Difference]:
    """Differences to NEO-Continual, without those of our methods and of none."""
    return {label: gap for label, gap in gaps.items() if not label.startswith(("neo", "none"))}


def _answer(
    setting: Setting,
    ours: Interval,
    gaps: Mapping[str, Interval],
    others: Mapping[str, Difference],
    where: tuple[str, str],
) -> str:
    """One sentence on NEO-Continual.

    Args:
        setting: The subject.
        ours: What it gains, over the most seeds.
        gaps: What all methods gain.
        others: How the methods of others differ from it.
        where: What to add on the samples and seeds of its gain, and of all gains.
    """
    ranked = sorted(gaps, key=lambda label: -gaps[label].mean)
    named = [
        f"{label} {comparing.gain_words(gaps[label])}{comparing.doubt(gaps[label])}"
        for label in ranked
        if label in ("neo", "cotta", "surgeon") or (label == ranked[0] and label != OURS)
    ]
    ahead, level = (comparing.with_verdict(others, said) for said in ("helps", "can't tell"))
    first = ", before all methods of others" if others and not level else ""
    before = f", after {comparing.listed(ahead)}" if ahead else first
    beside = f"; beside it{where[1]}, {', '.join(named)}" if named else ""
    chance = f"; its difference to {comparing.listed(level)} may be chance" if level else ""
    return (
        f"On {setting.title}, NEO-Continual gains {comparing.gain_words(ours)}{comparing.doubt(ours)} over "
        f"{len(setting.domains)} domains in a row{where[0]}{before}{beside}{chance}."
    )


def _holds(ours: Interval, others: Mapping[str, Difference]) -> Holds:
    parts = [comparing.claim_of_gain(ours)]
    rivals = {label: gap for label, gap in others.items() if label != "surgeon"}
    if others:
        better, level = (comparing.with_verdict(rivals, said) for said in ("helps", "can't tell"))
        parts.append("no" if better else "unclear" if level else "yes")
    return comparing.together(parts)

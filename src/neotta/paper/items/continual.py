"""Adaptation that is never reset while domain follows domain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from neotta.evaluate.method_plan import MethodPlan
from neotta.evaluate.metrics import Interval
from neotta.evaluate.over_time import over_time
from neotta.evaluate.plan import Plan
from neotta.paper.curves import Point, curve_rows, gain_lines, mean_lines
from neotta.paper.evidence import Evidence
from neotta.paper.finding import Holds, gained, together
from neotta.paper.item import Case, Skip, item
from neotta.paper.results import Gaps, with_verdict
from neotta.paper.study import Setting
from neotta.paper.words import doubted, file_name, listed, points
from neotta.report.charts import Panel, line_chart
from neotta.report.over_time import batches_figure

OURS = "neo-continual"


def _runs(setting: Setting) -> list[Plan]:
    known = {MethodPlan.parse(method).method for method in setting.methods}
    added = [method for method in ("none", OURS) if method not in known]
    return setting.online(*setting.methods, *added, protocol="continual")


@item(
    order=11,
    name="continual",
    title="Domain after domain, without a reset",
    place="Figure 5c; over the domain index in the appendix",
    question="Which methods still help when domains follow one another without notice?",
    claim="NEO-Continual gains accuracy, more of it than CoTTA, and only Surgeon gains more.",
    runs=_runs,
    domains=2,
)
def show(case: Case) -> None:
    """Compare mean gains, and follow them over the index of the domain."""
    found = case.results()
    gains = dict(sorted(found.gains.items(), key=lambda entry: -entry[1].mean))
    if not gains:
        raise Skip
    case.ranking(
        "continual gain",
        f"mean gain over {len(found.block.domains)} domains in a row",
        gains,
        "gain over no adaptation (points of accuracy)",
        f"{found.block.conditions.samples} samples of each domain, no reset.{found.seeds}",
        sign="+",
    )
    _follow(case, found.over_index(sequences(case.evidence, case.setting, case.plans)))
    case.add(*found.tables(case.title))
    if by_batch := over_time(found.block):
        case.add(batches_figure(by_batch, file_name("over time", case.title), f"{case.title}: accuracy over time"))
    of_others = {label: gap for label, gap in case.against(OURS).items() if not label.startswith(("neo", "none"))}
    sure = found.surest(OURS)
    if OURS in sure.gains:
        where = sure.extents(found)
        ours = sure.gains[OURS]
        case.say(_answer(len(case.setting.domains), ours, gains, of_others, where), _holds(ours, of_others))
    else:
        best = next(iter(gains))
        case.say(f"{best} gains most: {points(gains[best])}", "unclear")
    case.note(*found.failures)


def sequences(evidence: Evidence, setting: Setting, plans: Sequence[Plan]) -> dict[int, tuple[str, ...]]:
    """The order of the domains for each seed."""
    bench = evidence.bench(setting)
    runs = {run.seed: run for plan in plans for run in plan.runs(setting.domains)}
    return {seed: bench.orders(run)[0].domains for seed, run in runs.items()}


def _follow(case: Case, path: dict[str, list[Point]]) -> None:
    """Draw accuracy and gain over the index of the domain, without intervals."""
    upper, lower = (
        {label: points._replace(half_width=None) for label, points in lines(path).items()}
        for lines in (mean_lines, gain_lines)
    )
    ticks = range(1, 1 + max(len(points) for points in path.values()))
    below = "place of the domain in the sequence"
    case.figure(
        "continual index",
        "accuracy over the index of the domain",
        line_chart(
            Panel(upper, y="accuracy (%)"),
            Panel(lower, below, "gain over none (points)", ticks=ticks, doubling=False),
            stacked=True,
        ),
        curve_rows("index", path),
        "Mean over the seeds that all methods have, each with its own order of the domains, so the accuracy of all "
        "methods goes up and down with the domains met; the gain shows whether a method keeps helping.",
        height=5.2,
    )


def _answer(domains: int, ours: Interval, gains: Mapping[str, Interval], others: Gaps, where: tuple[str, str]) -> str:
    """One sentence on NEO-Continual.

    Args:
        domains: How many follow one another.
        ours: What it gains, over the most seeds.
        gains: What all methods gain, the best first.
        others: How the methods of others differ from it.
        where: What to add on the samples and seeds of its gain, and of all gains.
    """
    first = next(iter(gains))
    named = [
        f"{label} {doubted(gain)}"
        for label, gain in gains.items()
        if label in ("neo", "cotta", "surgeon") or (label == first and label != OURS)
    ]
    ahead, level = (with_verdict(others, said) for said in ("helps", "can't tell"))
    alone = ", before all methods of others" if others and not level else ""
    before = f", after {listed(ahead)}" if ahead else alone
    beside = f"; for comparison{where[1]}, {', '.join(named)}" if named else ""
    chance = f"; its difference to {listed(level)} may be chance" if level else ""
    return f"NEO-Continual gains {doubted(ours)} over {domains} domains in a row{where[0]}{before}{beside}{chance}"


def _holds(ours: Interval, others: Gaps) -> Holds:
    parts = [gained(ours)]
    rivals = {label: gap for label, gap in others.items() if label != "surgeon"}
    if others:
        better, level = (with_verdict(rivals, said) for said in ("helps", "can't tell"))
        parts.append("no" if better else "unclear" if level else "yes")
    return together(parts)

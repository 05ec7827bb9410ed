"""Adaptation that is never reset while domain follows domain, and how NEO-Continual starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from neotta.evaluate.answers import unpack
from neotta.evaluate.metrics import Interval
from neotta.evaluate.plan import MethodPlan, Plan
from neotta.evaluate.records import Record
from neotta.paper.claims import Holds, called, doubted, gained, listed, points, some, together
from neotta.paper.item import Report, Skip, item, need
from neotta.paper.measured import Gaps, Measured, with_verdict
from neotta.paper.study import RIVALS, Setting, method_of
from neotta.paper.tables import Point, curve_rows, gain_lines, gains_along, mean_lines
from neotta.report.charts import Panel, line_chart

OURS = "neo-continual"


def _runs(setting: Setting) -> list[Plan]:
    known = {MethodPlan.parse(method).method for method in setting.methods}
    added = [method for method in ("none", OURS) if method not in known]
    return setting.online(*setting.methods, *added, order="continual")


@item(
    title="Domain after domain, without a reset",
    place="Figure 5c; over the domain index in the appendix",
    claim="NEO-Continual gains accuracy, more of it than CoTTA, and only Surgeon gains more.",
    rivals=RIVALS,
    runs=_runs,
    domains=2,
)
def continual(report: Report) -> None:
    """Which methods still help when domains follow one another without notice?"""
    results = report.results()
    gains = dict(sorted(need(results.gaps).items(), key=lambda entry: -entry[1].mean))
    report.ranking(
        "continual gain",
        f"mean gain over {len(results.domains)} domains in a row",
        gains,
        "gain over no adaptation (points of accuracy)",
        f"{results.conditions.samples} samples of each domain, no reset.{results.basis}",
        sign="+",
    )
    _follow(report, results.over_index(sequences(report.records)))
    report.add(*results.shown(report.title))
    of_others = {label: gap for label, gap in report.against(OURS).items() if not label.startswith(("neo", "none"))}
    sure = results.surest(OURS)
    if OURS in sure.gaps:
        extents = sure.extent(OURS), results.extent(*gains)
        where = ("", "") if extents[0] == extents[1] else (f" ({extents[0]})", f" ({extents[1]})")
        ours = sure.gaps[OURS]
        rivals = {label: gap for label, gap in of_others.items() if method_of(label) in RIVALS}
        report.say(_answer(len(report.setting.domains), ours, gains, of_others, where), _holds(ours, rivals), rivals)
    else:
        best = next(iter(gains))
        report.say(f"{called(best)} gains most: {points(gains[best])}", "unclear")


def sequences(records: Sequence[Record]) -> dict[int, tuple[str, ...]]:
    """The order of the domains for each seed."""
    answers = {record.seed: unpack(record) for record in records if not record.failed}
    return {seed: each.domains for seed, each in answers.items() if each is not None}


def _follow(report: Report, path: dict[str, list[Point]]) -> None:
    upper, lower = (
        {label: points._replace(ends=()) for label, points in lines(path).items()} for lines in (mean_lines, gain_lines)
    )
    ticks = range(1, 1 + max(len(points) for points in path.values()))
    below = "place of the domain in the sequence"
    report.figure(
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
    first = next(iter(gains))
    named = [
        f"{called(label)} {doubted(gain)}"
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


# ---- the start

AVERAGES = ("none", "neo", "neo-continual:debias=false|true")
DEBIASED = "neo-continual, debiased"
NAMES = {"neo-continual debias=False": OURS, "neo-continual debias=True": DEBIASED}


def _starts(setting: Setting) -> list[Plan]:
    numbers = [setting.study.batch_size * 2**power for power in range(10)]
    numbers = [*(number for number in numbers if number < setting.samples), setting.samples]
    plans = [setting.plan(*AVERAGES, samples=numbers)]
    return [*plans, setting.plan(*AVERAGES, order="continual")] if len(setting.domains) > 1 else plans


@item(title="The start of NEO-Continual", runs=_starts)
def continual_start(report: Report) -> None:
    """What does it cost that the moving average starts at zero, and does debias make up for it?"""
    first, *rest = (Measured.of(report.evidence.records(plan)) for plan in report.plans)
    start, domains = first.curves(names=NAMES) if first else {}, len(report.setting.domains)
    if first is None or not start:
        raise Skip
    report.lines(
        "continual start",
        "gain over the first samples of a domain, with and without debias",
        {"": start},
        curve_rows("samples", start),
        "Accuracy on the samples themselves while adapting, mean over the domains. Band: 95 % interval over images "
        "and seeds.",
        x=f"samples of the domain so far (batches of {report.setting.study.batch_size})",
        y="gain over none (points)",
    )
    caption = f"Accuracy in % while adapting, mean over {domains} domains.{first.basis}"
    report.curve("accuracy over the first samples of a domain", "samples", start, caption)
    plain, debiased = (gains_along(start[name]) for name in (OURS, DEBIASED))
    said = [
        f"{_both(plain[number], debiased[number])} over the first {some(number, 'sample')}"
        for number in dict.fromkeys([min(plain), max(plain)])
        if number in debiased
    ]
    report.note(*first.failures)
    for results in filter(None, rest):
        if row := results.curves(names=NAMES):
            caption = f"Accuracy in % while adapting without a reset.{results.basis}"
            report.curve(f"accuracy over {domains} domains in a row", "samples per domain", row, caption)
            said.append(f"{_both(row[OURS][0].gain, row[DEBIASED][0].gain)} over {domains} domains in a row")
        report.note(*results.failures)
    report.say(f"NEO-Continual gains {'; '.join(said)}")


def _both(plain: Interval, debiased: Interval) -> str:
    return f"{doubted(plain)} without and {doubted(debiased)} with debias"

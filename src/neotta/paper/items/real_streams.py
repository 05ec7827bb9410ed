"""What each rule does on the streams that real cameras see; not a table of the paper."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from neotta.adapters.registry import methods
from neotta.data.orders import find_order
from neotta.evaluate.domains import CLEAN
from neotta.evaluate.plan import Plan
from neotta.evaluate.records import Record
from neotta.evaluate.stream_harm import HURT, Cells, Summary, accuracies, gains
from neotta.paper.item import Report, item, need
from neotta.paper.study import Setting, needs_images
from neotta.paper.tables import Rows
from neotta.report.charts import heat_chart
from neotta.report.grids import grid

BATCH = 16
STREAMS = (
    *("iid", "correlated:delta=0.1,whole=true", "correlated:delta=0.01,whole=true"),
    *("by-class", "by-class:numbered=true"),
    *("some-classes:classes=1", "some-classes:classes=2", "some-classes:classes=5", "some-classes:classes=10"),
    *("imbalanced:ratio=100.0,whole=true", "mixed-then-one", "bursts:length=5", "bursts:length=100"),
    *("in-turn:classes=2", "in-turn", "dominant:share=0.5", "dominant:share=0.9"),
    *("repeated:times=8", "frozen-start", "outliers"),
    *("new-cameras:each=1", "new-cameras:each=4", "new-cameras:each=16", "new-cameras:each=64"),
    *("changes:every=64", "changes:every=512", "changes:every=64,delta=0.1", "changes:every=512,delta=0.1"),
    "changes:every=256,rounds=2",
)
"""The orders."""
DRAWN = ("some-classes:classes=1", "some-classes:classes=2", "dominant:share=0.5", "dominant:share=0.9")
"""Those whose outcome depends on which classes they show: they are drawn with all seeds."""
SEEDS = 3
"""Seeds of the others, at most."""


def _methods(setting: Setting) -> list[str]:
    """What to run: the methods that the study names, or all; of these, what needs images would take days."""
    named = "methods" in setting.study.model_fields_set or setting.subject.methods
    chosen = setting.methods if named else [name for name in methods() if setting.can(name)]
    return [method for method in chosen if not needs_images(method)]


def _kinds(setting: Setting) -> list[str]:
    several = len(setting.domains) > 1
    return [kind for kind in STREAMS if several or not find_order(kind.partition(":")[0]).through]


def _runs(setting: Setting) -> list[Plan]:
    seeds = setting.study.seeds
    draws = {kind: seeds if kind in DRAWN else seeds[:SEEDS] for kind in _kinds(setting)}
    return [
        setting.plan(*_methods(setting), clean=True, order=kind, seeds=seeds, batch_sizes=[BATCH])
        for kind, seeds in draws.items()
    ]


@item(
    title="Re-centering on real streams",
    runs=_runs,
    remarks=("This is not part of the paper, which assumes that the classes of a stream are balanced.",),
)
def real_streams(report: Report) -> None:
    """Does re-centering do harm on the streams that real cameras see?"""
    plans = zip(_kinds(report.setting), report.plans, strict=True)  # other orders may have the same records
    records = {kind: report.evidence.records(plan) for kind, plan in plans}
    cells = need(gains(records))
    shifted = {method: {at: gain for at, gain in each.items() if at.domain != CLEAN} for method, each in cells.items()}
    clean = {method: {at: gain for at, gain in each.items() if at.domain == CLEAN} for method, each in cells.items()}
    _draw(report, "shifted", "corrupted images", shifted)
    _draw(report, "clean", "clean images", clean)
    _by_kind(report, shifted, plain(records))
    _harm_by_kind(report, cells)
    _table(report, cells, clean)
    sums = {method: Summary.of(each.values()) for method, each in cells.items()}
    lines = [
        f"{method} changes accuracy by {sums[method].mean:+.1f} points on average ({sums[method].worst:+.1f} in the "
        f"worst case) and costs more than a point in {sums[method].hurt:.0f} % of the cases"
        for method in ("neo", "neo-stream")
        if method in sums
    ]
    report.say("; ".join(lines))


def plain(records: Mapping[str, Sequence[Record]]) -> dict[str, float]:
    """Accuracy of the plain model by kind of stream, in percent, over the shifted domains."""
    by_kind: dict[str, list[float]] = {}
    for cell, by_method in accuracies(records).items():
        if cell.domain != CLEAN and "none" in by_method:
            by_kind.setdefault(cell.kind, []).append(by_method["none"])
    return {kind: statistics.fmean(values) for kind, values in by_kind.items()}


def _means(cells: Cells) -> dict[str, dict[str, float]]:
    kinds = [kind for kind in STREAMS if any(at.kind == kind for each in cells.values() for at in each)]
    return {
        kind: {
            method: statistics.fmean(gains)
            for method, each in cells.items()
            if (gains := [gain for at, gain in each.items() if at.kind == kind])
        }
        for kind in kinds
    }


def _draw(report: Report, name: str, what: str, cells: Cells) -> None:
    means = _means(cells)
    if not means:
        return
    data: Rows = [{"method": m, "kind": kind, "gain": gain} for kind, by in means.items() for m, gain in by.items()]
    report.figure(
        f"real streams {name}",
        f"gain on {what} by kind of stream",
        heat_chart(
            [[by.get(method, math.nan) for method in cells] for by in means.values()],
            list(means),
            "change in accuracy (points)",
            columns=list(cells),
            centre=0.0,
        ),
        data,
        f"Points over the plain model on the same samples, mean over streams; batches of {BATCH}.",
        height=1.4 + 0.19 * len(means),
    )


def _by_kind(report: Report, cells: Cells, without: Mapping[str, float]) -> None:
    means = _means(cells)
    rows = {
        kind: [f"{without[kind]:.1f}", *(f"{by[method]:+.1f}" if method in by else "–" for method in cells)]
        for kind, by in means.items()
    }
    data: Rows = [{"kind": kind, "plain": without[kind], **by} for kind, by in means.items()]
    caption = "Accuracy of the plain model in %, and points over it, mean over the streams of shifted domains."
    report.table("gain by kind of stream", grid("stream", ["plain", *cells], rows), data, caption)


def _harm_by_kind(report: Report, cells: Cells) -> None:
    rows: dict[str, list[str]] = {}
    data: Rows = []
    for kind in _means(cells):
        mine = {method: [gain for at, gain in each.items() if at.kind == kind] for method, each in cells.items()}
        sums = {method: Summary.of(gains) for method, gains in mine.items() if gains}
        rows[kind] = [str(max(summary.cells for summary in sums.values()))]
        rows[kind] += [
            f"{s.mean:+.1f}, {s.low:+.1f}, {s.worst:+.1f}, {s.hurt:.0f} %" if (s := sums.get(m)) else "–" for m in cells
        ]
        data += [{"kind": kind, "method": method, **summary._asdict()} for method, summary in sums.items()]
    caption = (
        "Mean gain, 5th percentile, worst stream, and share of the streams that lose more than "
        f"{HURT:g} point (clean images included)."
    )
    report.table("harm by kind of stream", grid("stream", ["streams", *cells], rows), data, caption)


def _table(report: Report, cells: Cells, clean: Cells) -> None:
    rows: dict[str, list[str]] = {}
    data: Rows = []
    for method, each in cells.items():
        total = Summary.of(each.values())
        apart = Summary.of(clean[method].values()) if clean.get(method) else None
        data.append({"method": method, **total._asdict(), **({"clean_mean": apart.mean} if apart else {})})
        data[-1]["worst_at"] = where = str(min((gain, at) for at, gain in each.items())[1])
        rows[method] = [f"{total.mean:+.1f}", f"{total.low:+.1f}", f"{total.worst:+.1f}", where]
        rows[method] += [f"{total.hurt:.0f} %", str(total.cells)]
        rows[method] += [f"{apart.mean:+.1f}", f"{apart.worst:+.1f}"] if apart else ["–", "–"]
    columns = ["mean gain", "5 %", "worst", "which", "hurt", "streams", "mean on clean", "worst on clean"]
    caption = f"Points over the plain model; 5 %: the 5th percentile; hurt: a loss of more than {HURT:g} point."
    report.table("harm and gain over all kinds of streams", grid("method", columns, rows), data, caption)

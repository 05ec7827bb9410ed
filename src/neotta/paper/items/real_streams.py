"""What each rule does on the streams that real cameras see; not a table of the paper."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neotta.adapters.registry import methods
from neotta.data.orders import find_order
from neotta.evaluate.domains import CLEAN
from neotta.evaluate.plan import Plan
from neotta.evaluate.stream_harm import HURT, STREAM, gains, summed
from neotta.paper.claims import called
from neotta.paper.item import Report, item, need
from neotta.paper.study import Setting, needs_images
from neotta.paper.tables import Rows
from neotta.report.charts import heat_chart
from neotta.report.grids import grid

if TYPE_CHECKING:
    import pandas

BATCH = 16
STREAMS = (
    *("iid", "correlated:delta=0.1,whole=true", "correlated:delta=0.01,whole=true"),
    *("by-class", "by-class:numbered=true"),
    *("some-classes:classes=1", "some-classes:classes=2", "some-classes:classes=5", "some-classes:classes=10"),
    *("imbalanced:ratio=100.0,whole=true", "mixed-then-one", "bursts:length=5", "bursts:length=100"),
    *("in-turn:classes=2", "in-turn", "dominant:share=0.5", "dominant:share=0.9"),
    *("repeated:times=8", "frozen-start", "outliers"),
    *("new-cameras:each=1", "new-cameras:each=4", "new-cameras:each=16", "new-cameras:each=64"),
    *("changes:every=64", "changes:every=512", "changes:delta=0.1,every=64", "changes:delta=0.1,every=512"),
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
    every = gains(report.records)
    need(len(every))
    clean = every["domain"] == CLEAN
    _draw(report, "shifted", "corrupted images", every[~clean])
    _draw(report, "clean", "clean images", every[clean])
    _harm_by_kind(report, every)
    sums = _table(report, every)
    lines = [
        f"{called(method)} changes accuracy by {sums[method]['mean']:+.1f} points on average "
        f"({sums[method]['worst']:+.1f} in the worst case) and costs more than a point in {sums[method]['hurt']:.0f} % "
        "of the cases"
        for method in ("neo", "neo-stream")
        if method in sums
    ]
    report.say("; ".join(lines))


def _means(gains: pandas.DataFrame) -> pandas.DataFrame:
    """Mean gain by kind and method."""
    means = gains.pivot_table("gain", "kind", "method", observed=True)
    return means.loc[[kind for kind in STREAMS if kind in means.index]]


def _draw(report: Report, name: str, what: str, gains: pandas.DataFrame) -> None:
    means = _means(gains)
    if not len(means):
        return
    data = means.stack().rename("gain").reset_index()[["method", "kind", "gain"]]
    report.figure(
        f"real streams {name}",
        f"gain on {what} by kind of stream",
        heat_chart(
            means.to_numpy(),
            list(means.index),
            "change in accuracy (points)",
            columns=list(means.columns),
            centre=0.0,
        ),
        data.to_dict("records"),
        f"Points over the plain model on the same samples, mean over streams; batches of {BATCH}.",
        height=1.4 + 0.19 * len(means),
    )


def _harm_by_kind(report: Report, gains: pandas.DataFrame) -> None:
    methods, rows, data = list(gains["method"].cat.categories), dict[str, list[str]](), Rows()
    for kind in _means(gains).index:
        mine = gains[gains["kind"] == kind]
        sums = {method: summed(each["gain"]) for method, each in mine.groupby("method", observed=True)}
        words = {
            method: f"{s['mean']:+.1f}, {s['low']:+.1f}, {s['worst']:+.1f}, {s['hurt']:.0f} %"
            for method, s in sums.items()
        }
        streams = max(int(each["streams"]) for each in sums.values())
        rows[kind] = [str(streams), *(words.get(method, "–") for method in methods)]
        data += [{"kind": kind, "method": method, **each} for method, each in sums.items()]
    caption = (
        "Mean gain, 5th percentile, worst stream, and share of the streams that lose more than "
        f"{HURT:g} point (clean images included)."
    )
    report.table("harm by kind of stream", grid("stream", ["streams", *methods], rows), data, caption)


def _table(report: Report, gains: pandas.DataFrame) -> dict[str, dict[str, float]]:
    rows, data, sums = dict[str, list[str]](), Rows(), dict[str, dict[str, float]]()
    for method, each in gains.groupby("method", observed=True):
        total, on_clean = summed(each["gain"]), each["gain"][each["domain"] == CLEAN]
        where = STREAM.format_map(each.sort_values(["kind", "domain", "seed"]).loc[each["gain"].idxmin()])
        more = {"clean_mean": float(on_clean.mean())} if len(on_clean) else {}
        data.append({"method": method, **total, **more, "worst_at": where})
        rows[method] = [f"{total['mean']:+.1f}", f"{total['low']:+.1f}", f"{total['worst']:+.1f}", where]
        rows[method] += [f"{total['hurt']:.0f} %", f"{total['streams']}"]
        rows[method] += [f"{on_clean.mean():+.1f}", f"{on_clean.min():+.1f}"] if len(on_clean) else ["–", "–"]
        sums[method] = total
    columns = ["mean gain", "5 %", "worst", "which", "hurt", "streams", "mean on clean", "worst on clean"]
    caption = f"Points over the plain model; 5 %: the 5th percentile; hurt: a loss of more than {HURT:g} point. "
    caption += "Every stream counts once, so that kinds with more streams weigh more."
    report.table("harm and gain over all kinds of streams", grid("method", columns, rows), data, caption)
    return sums

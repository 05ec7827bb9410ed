"""Numbers as rows of data and as tables: published beside measured ones, and curves along something varied."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from neotta.evaluate.estimates import METRICS
from neotta.evaluate.metrics import NOTHING, Interval, rounded
from neotta.paper.published import Value
from neotta.report import grids
from neotta.report.charts import Series
from neotta.report.figures import display
from neotta.report.grids import Entry, Table

Rows = list[dict[str, Any]]
"""Plain numbers for CSV."""


def plain(interval: Interval, prefix: str = "") -> dict[str, float | int | None]:
    numbers = zip(("mean", "half_width", "low", "high"), (*interval[:2], *interval.ends), strict=True)
    return {**{prefix + name: known(number) for name, number in numbers}, f"{prefix}seeds": interval.runs}


def single(value: float) -> Interval:
    return Interval(value, math.nan, 1)


def known(value: float) -> float | None:
    """A number for a row of data: None in place of NaN."""
    return None if math.isnan(value) else value


def beside(
    title: str,
    published: Mapping[str, float],
    measured: Mapping[str, Interval],
    *,
    corner: str = "method",
    digits: int = 1,
    sign: str = "",
    caption: str = "",
) -> Table:
    """Published and measured numbers by name, side by side with their difference; `sign` is `"+"` for changes."""
    metric = METRICS["top1"]._replace(digits=digits)
    shown: dict[str, tuple[str, ...]] = {}
    data: Rows = []
    for name in dict.fromkeys([*published, *measured]):
        printed, mine = published.get(name, math.nan), measured.get(name, NOTHING)
        gap = mine.mean - printed
        shown[name] = (_text(printed, digits, sign), metric.text(mine, sign), _text(gap, digits, "+"))
        row = {corner: name, "published": known(printed), **plain(mine, "measured_"), "difference": known(gap)}
        data.append(row)
    return Table(title, grids.grid(corner, ("published", "measured", "difference"), shown), data, caption)


def each_beside(
    title: str,
    published: Mapping[str, Mapping[str, Value]],
    measured: Mapping[str, Mapping[str, Interval]],
    caption: str,
) -> Table:
    """Published and measured numbers by domain and method, if both exist: `57.0 / 57.4 (+0.4)`."""
    rows = {row: {name: value for name, value in published[row].items() if name in measured[row]}
            for row in published if row in measured}  # fmt: skip
    methods = list(dict.fromkeys(name for values in rows.values() for name in values))
    shown: dict[str, list[str]] = {}
    data: Rows = []
    for row, values in rows.items():
        shown[row] = []
        for name in methods:
            printed, half = values.get(name, (math.nan, None))
            mine = measured[row].get(name, NOTHING)
            gap = mine.mean - printed
            both = f"{_text(printed, 1, '')} / {_text(mine.mean, 1, '')}"
            shown[row].append(Entry().text if math.isnan(gap) else f"{both} ({_text(gap, 1, '+')})")
            about = {"domain": row, "method": name, "published": known(printed), "published_half_width": half}
            data.append({**about, **plain(mine, "measured_"), "difference": known(gap)})
    return Table(title, grids.grid("domain", methods, shown), data, caption)


def _text(value: float, digits: int, sign: str) -> str:
    return Entry().text if math.isnan(value) else rounded(value, digits, sign)


class Point(NamedTuple):
    """A method's result at place x of a curve: its mean over the domains, and its difference to no adaptation."""

    x: float
    mean: Interval
    gain: Interval


Curves = Mapping[str, Sequence[Point]]
"""By method: its points, in order."""


def gains_along(points: Sequence[Point]) -> dict[float, Interval]:
    """Differences to no adaptation by place, if there are any."""
    return {point.x: point.gain for point in points if point.gain.runs}


def mean_lines(curves: Curves) -> dict[str, Series]:
    return {label: _series([(point.x, point.mean) for point in points]) for label, points in curves.items()}


def gain_lines(curves: Curves) -> dict[str, Series]:
    """Differences to no adaptation as lines, for the methods that have any."""
    by_label = {label: list(gains_along(points).items()) for label, points in curves.items()}
    return {label: _series(gains) for label, gains in by_label.items() if gains}


def _series(gains: Sequence[tuple[float, Interval]]) -> Series:
    certain = not any(math.isnan(each.half_width) for _, each in gains)
    ends = [each.ends for _, each in gains] if certain else []
    return Series([x for x, _ in gains], [each.mean for _, each in gains], ends)


def curve_table(
    title: str, corner: str, curves: Curves, caption: str, digits: int = 1, names: Mapping[float, str] | None = None
) -> Table:
    """Places by methods: means, and differences to no adaptation; `names` for places not called by their numbers."""
    metric = METRICS["top1"]._replace(digits=digits)
    means = {label: {point.x: point.mean for point in points} for label, points in curves.items()}
    gains = {label: gain for label, points in curves.items() if (gain := gains_along(points))}
    shown: dict[str, list[str]] = {}
    for x in sorted({x for by_place in means.values() for x in by_place}):
        texts = [metric.text(by_place.get(x, NOTHING)) for by_place in means.values()]
        texts += [metric.text(by_place.get(x, NOTHING), "+") for by_place in gains.values()]
        shown[(names or {}).get(x, f"{x:g}")] = texts
    columns = (*curves, *(f"gain of {display(label)}" for label in gains))
    return Table(title, grids.grid(corner, columns, shown), curve_rows(corner, curves), caption)


def curve_rows(corner: str, curves: Curves) -> Rows:
    rows: Rows = []
    for label, points in curves.items():
        for point in points:
            gain = {name: value for name, value in plain(point.gain, "gain_").items() if name != "gain_seeds"}
            rows.append({corner: point.x, "method": label, **plain(point.mean), **gain})
    return rows

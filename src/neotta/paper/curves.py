"""Results along something that is varied: the number of samples, of classes, the weight of a batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from neotta.evaluate.comparison import METRICS
from neotta.evaluate.metrics import Interval
from neotta.paper.tables import Rows, plain
from neotta.report import grids
from neotta.report.charts import Series
from neotta.report.grids import Entry, Table, number


class Point(NamedTuple):
    """A method's result at one place of a curve.

    Attributes:
        x: The place.
        mean: Its mean over the domains, and the interval over seeds.
        gain: Its difference to no adaptation on the same samples; nothing for no adaptation itself.
    """

    x: float
    mean: Interval
    gain: Interval


Curves = Mapping[str, Sequence[Point]]
"""By method: its points, in order."""


def gains_along(points: Sequence[Point]) -> dict[float, Interval]:
    """Differences to no adaptation by place, if there are any."""
    return {point.x: point.gain for point in points if point.gain.runs}


def mean_lines(curves: Curves) -> dict[str, Series]:
    """Means as lines."""
    return {label: _series([(point.x, point.mean) for point in points]) for label, points in curves.items()}


def gain_lines(curves: Curves) -> dict[str, Series]:
    """Differences to no adaptation as lines, for the methods that have any."""
    found = {label: list(gains_along(points).items()) for label, points in curves.items()}
    return {label: _series(gains) for label, gains in found.items() if gains}


def _series(found: Sequence[tuple[float, Interval]]) -> Series:
    halves = [each.half_width for _, each in found]
    certain = halves and not any(math.isnan(half) for half in halves)
    return Series([x for x, _ in found], [each.mean for _, each in found], halves if certain else None)


def curve_table(
    title: str, corner: str, curves: Curves, caption: str, digits: int = 1, names: Mapping[float, str] | None = None
) -> Table:
    """Places by methods: means, and differences to no adaptation; `names` for places not called by their numbers."""
    metric = METRICS["top1"]._replace(digits=digits)
    found = {label: {point.x: point for point in points} for label, points in curves.items()}
    gaining = [label for label, points in curves.items() if gains_along(points)]
    shown: dict[str, list[str]] = {}
    for x in sorted({x for points in found.values() for x in points}):
        means = [number(found[label][x].mean, metric) if x in found[label] else Entry().text for label in found]
        gains = [number(found[label][x].gain, metric, "+") if x in found[label] else Entry().text for label in gaining]
        shown[(names or {}).get(x, f"{x:g}")] = [*means, *gains]
    columns = (*curves, *(f"gain of {label}" for label in gaining))
    return Table(title, grids.grid(corner, columns, shown), curve_rows(corner, curves), caption)


def curve_rows(corner: str, curves: Curves) -> Rows:
    """The points as plain numbers."""
    rows: Rows = []
    for label, points in curves.items():
        for point in points:
            gain = {f"gain_{name}": value for name, value in plain(point.gain).items() if name != "seeds"}
            rows.append({corner: point.x, "method": label, **plain(point.mean), **gain})
    return rows

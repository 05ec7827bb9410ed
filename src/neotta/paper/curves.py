"""Accuracy along something that is varied: the number of samples, of classes, the size of batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from neotta.evaluate.comparison import METRICS, Block, Comparison
from neotta.evaluate.metrics import Interval, interval, verdict
from neotta.evaluate.naming import Conditions
from neotta.paper import comparing
from neotta.paper.item import Holds, Rows, Table
from neotta.report import grids
from neotta.report.figures import Series
from neotta.report.grids import Entry, Grid, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes


NEARLY = 0.9
"""Which part of a gain is nearly all of it."""


class Point(NamedTuple):
    """What a method does at one place.

    Attributes:
        x: The place.
        mean: Its mean over the domains, and the interval over seeds.
        gain: Its difference to no adaptation on the same samples; nothing for no adaptation itself.
    """

    x: float
    mean: Interval
    gain: Interval


Curves = Mapping[str, Sequence[Point]]


def along(
    comparison: Comparison,
    place: Callable[[Conditions], float],
    *,
    domain: str | None = None,
    names: Mapping[str, str] | None = None,
) -> dict[str, list[Point]]:
    """The points of each method, by what its runs share.

    Args:
        comparison: Of runs that differ in something.
        place: What they differ in.
        domain: Look at this domain instead of the mean over the shifted ones.
        names: What to call methods, by their labels.
    """
    found: dict[str, list[Point]] = {}
    for block in comparison.blocks:
        means, gaps = _in_all(block) if domain is None else _in_one(block, domain)
        for label, mean in means.items():
            point = Point(place(block.conditions), mean, gaps.get(label, comparing.NOTHING))
            found.setdefault((names or {}).get(label, label), []).append(point)
    return {label: sorted(points) for label, points in found.items()}


Values = dict[str, Interval]


def _in_all(block: Block) -> tuple[Values, Values]:
    """Means over the shifted domains and differences to the baseline, by method."""
    return comparing.means(block), {label: gap.interval for label, gap in comparing.mean_gaps(block).items()}


def _in_one(block: Block, domain: str) -> tuple[Values, Values]:
    """The same in one domain."""
    means = {label: cell.interval for (where, label), cell in block.cells.items() if where == domain and cell.values}
    return means, {label: gap.interval for (where, label), gap in block.differences.items() if where == domain}


def gains(points: Sequence[Point]) -> dict[float, Interval]:
    """Differences to no adaptation by place, where there are any."""
    return {point.x: point.gain for point in points if point.gain.runs}


def per_seed(block: Block, label: str) -> dict[int, float]:
    """The mean of a method over the shifted domains, for each seed that has them all."""
    cells = [block.cells[domain, label] for domain in block.averaged or block.domains if (domain, label) in block.cells]
    if len(cells) < len(block.averaged or block.domains):
        return {}
    seeds = set.intersection(*(set(cell.values) for cell in cells))
    return {seed: math.fsum(cell.values[seed].number for cell in cells) / len(cells) for seed in sorted(seeds)}


def between(mine: Mapping[int, float], theirs: Mapping[int, float]) -> Interval:
    """The difference of two results, paired by seed."""
    return interval([mine[seed] - theirs[seed] for seed in mine if seed in theirs])


def nearly(part: Interval, whole: Interval) -> Holds:
    """Whether one gain is nearly all of another; nothing is said of a gain that may be chance.

    That it is not is only said if their intervals lie apart.
    """
    if math.isnan(part.half_width) or verdict(whole) == "can't tell":
        return "unclear"
    if part.mean >= NEARLY * whole.mean > 0:
        return "yes"
    return "no" if whole.mean <= 0 or part.mean + part.half_width < whole.mean - whole.half_width else "unclear"


def means_of(points: Sequence[Point]) -> Series:
    """Means as a line."""
    return _series([(point.x, point.mean) for point in points])


def gains_of(points: Sequence[Point]) -> Series:
    """Differences to no adaptation as a line."""
    return _series(list(gains(points).items()))


def _series(found: Sequence[tuple[float, Interval]]) -> Series:
    halves = [each.half_width for _, each in found]
    certain = halves and not any(math.isnan(half) for half in halves)
    return Series([x for x, _ in found], [each.mean for _, each in found], halves if certain else None)


def failures(comparison: Comparison) -> list[str]:
    """What failed, one line per method and error."""
    return list(dict.fromkeys(line for block in comparison.blocks for line in grids.failures(block)))


def doubling(axes: Axes, places: Sequence[float]) -> None:
    """A logarithmic axis that names its places."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(places, [f"{place:g}" for place in places])
    axes.minorticks_off()


def table(title: str, corner: str, curves: Curves, caption: str, digits: int = 1) -> Table:
    """Places by methods: means, and differences to no adaptation."""
    metric = METRICS["top1"]._replace(digits=digits)
    gaining = [label for label, points in curves.items() if gains(points)]
    found = {label: {point.x: point for point in points} for label, points in curves.items()}
    shown = []
    for x in sorted({x for points in found.values() for x in points}):
        entries = [Entry(number(found[label][x].mean, metric)) if x in found[label] else Entry() for label in found]
        entries += [
            Entry(number(found[label][x].gain, metric, "+")) if x in found[label] else Entry() for label in gaining
        ]
        shown.append((f"{x:g}", tuple(entries)))
    columns = (*curves, *(f"gain of {label}" for label in gaining))
    return Table(title, Grid(corner, columns, tuple(shown)), rows(corner, curves), caption)


def rows(corner: str, curves: Curves) -> Rows:
    """The points as plain numbers."""
    return [
        {
            corner: point.x,
            "method": label,
            **comparing.plain(point.mean),
            **{f"gain_{name}": value for name, value in comparing.plain(point.gain).items() if name != "seeds"},
        }
        for label, points in curves.items()
        for point in points
    ]

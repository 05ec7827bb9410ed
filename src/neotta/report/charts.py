"""Kinds of charts, each as a function that draws it onto a canvas."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from neotta.evaluate.metrics import Interval
from neotta.report.figures import FAINT, INK, Draw, display, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas


def legend(canvas: Canvas, axes: Axes, columns: int = 5, *, beside: bool = False) -> None:
    """The names of what is drawn, in rows above it or in a column beside it."""
    handles, names = axes.get_legend_handles_labels()
    if handles and beside:
        canvas.legend(handles, names, loc="outside right upper", fontsize=8)
    elif handles:
        canvas.legend(handles, names, loc="outside upper left", ncols=min(columns, len(names)), fontsize=8)


# ---- lines


class Series(NamedTuple):
    """The points of a line: y over x, with the ends of intervals if there are any."""

    x: Sequence[float]
    y: Sequence[float]
    ends: Sequence[tuple[float, float]] = ()


class Panel(NamedTuple):
    """Lines that share axes; `x` and `y` are the labels of these."""

    series: Mapping[str, Series]
    x: str = ""
    y: str = ""
    title: str = ""
    ticks: Sequence[float] = ()  # of the horizontal axis
    names: Mapping[float, str] = {}  # of ticks that are not called by their numbers
    doubling: bool = True  # the ticks double, so that the axis is logarithmic
    zero: bool = False  # draw a line at zero


def line_chart(*panels: Panel, stacked: bool = False) -> Draw:
    """Panels of lines side by side, or one below the other, with one legend."""

    def draw(canvas: Canvas) -> None:
        shape = (len(panels), 1) if stacked else (1, len(panels))
        every = canvas.subplots(*shape, squeeze=False, sharex=stacked, sharey=not stacked).ravel()
        for axes, panel in zip(every, panels, strict=True):
            lines(axes, panel.series)
            axes.set(xlabel=panel.x, ylabel=panel.y, title=panel.title)
            if "%" in panel.y:  # a share has no values beyond 0 and 100 %
                low, high = axes.get_ylim()
                axes.set_ylim(max(low, -1), min(high, 101))
            if panel.zero:
                axes.axhline(0, color=INK, linewidth=0.8)
            if panel.ticks and panel.doubling:
                axes.set_xscale("log", base=2)
            if panel.ticks:
                axes.set_xticks(panel.ticks, [panel.names.get(tick, f"{tick:g}") for tick in panel.ticks])
                axes.minorticks_off()
        legend(canvas, every[0])

    return draw


def lines(axes: Axes, series: Mapping[str, Series]) -> None:
    """Lines with markers, and bands where there are intervals."""
    for name, points in series.items():
        look = style(name, list(series))
        marker = "" if len(points.x) > 40 else look.marker
        axes.plot(points.x, points.y, color=look.color, marker=marker, label=display(name))
        if points.ends:
            low, high = np.transpose(points.ends)
            if len(points.x) == 1:  # a band would have no width
                axes.vlines(points.x, low, high, color=look.color, linewidth=0.9)
            axes.fill_between(points.x, low, high, color=look.color, alpha=0.15, linewidth=0)
    axes.grid(axis="y")


# ---- rankings


class Ranking(NamedTuple):
    """Horizontal bars, the first on top."""

    values: Mapping[str, Interval]
    label: str  # what the values are
    digits: int = 1  # of the numbers beside the bars
    sign: str = ""  # "+" for values that are changes
    color: str = ""  # the method whose colour all bars have; by default every name has its own


def ranking_chart(*rankings: Ranking) -> Draw:
    """Rankings of the same names, side by side."""

    def draw(canvas: Canvas) -> None:
        every = canvas.subplots(1, len(rankings), sharey=True, squeeze=False)[0]
        for axes, ranking in zip(every, rankings, strict=True):
            _draw_ranking(axes, ranking)

    return draw


def _draw_ranking(axes: Axes, ranking: Ranking) -> None:
    names = list(ranking.values)
    bars = [
        (place, name, each.mean, (each.mean,) * 2 if math.isnan(each.half_width) else each.ends)
        for place, (name, each) in enumerate(ranking.values.items())
        if not math.isnan(each.mean)
    ]
    ends = [0.0, *(high if value >= 0 else low for _, _, value, (low, high) in bars)]
    if ranking.sign:  # of a change it has to be seen whether its interval includes zero
        ends += [low if value >= 0 else high for _, _, value, (low, high) in bars]
    span = max(ends) - min(ends) or 1.0
    for place, name, value, (low, high) in bars:
        axes.barh(place, value, height=0.72, color=style(ranking.color or name, names).color)
        if low < high:
            axes.errorbar(value, place, xerr=[[value - low], [high - value]], color=INK, capsize=2, linewidth=0.9)
        text, align = f"{value:{ranking.sign}.{ranking.digits}f}", "left" if value >= 0 else "right"
        beside = high + 0.015 * span if value >= 0 else low - 0.015 * span
        axes.text(beside, place, text, va="center", ha=align, fontsize=7.5)
    axes.set_yticks(range(len(names)), list(map(display, names)))
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.axvline(0, color=INK, linewidth=0.8)
    room = 0.21 * span
    axes.set_xlim(min(ends) - (room if min(ends) < 0 else 0), max(ends) + room)
    if "%" in ranking.label and not ranking.sign:  # beyond it there is room for numbers, but there are no values
        axes.set_xticks([tick for tick in axes.get_xticks() if min(ends) <= tick <= min(100, max(ends) + room)])
    axes.set_xlabel(ranking.label)


# ---- dots with whiskers


def dot_chart(rows: Mapping[str, Mapping[str, Interval]], label: str, *, zero: bool = False) -> Draw:
    """Intervals as dots with whiskers: a line of dots for each row, the first on top; one colour per name.

    `zero` draws a line at zero: for differences.
    """
    names = list(dict.fromkeys(name for dots in rows.values() for name in dots))

    def draw(canvas: Canvas) -> None:
        axes = canvas.subplots()
        for place, dots in enumerate(rows.values()):
            for name, each in dots.items():
                low, high = each.ends
                look = style(name, names)
                across = place if len(dots) == 1 else place + 0.7 * ((names.index(name) + 0.5) / len(names) - 0.5)
                if not math.isnan(low):
                    axes.plot([low, high], [across, across], color=look.color, linewidth=1.4)
                first = not any(name in others for others in list(rows.values())[:place])
                shown = display(name) if first else None
                axes.plot([each.mean], [across], color=look.color, marker=look.marker, linestyle="", label=shown)
        axes.set_yticks(range(len(rows)), list(map(display, rows)))
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x")
        if zero:
            axes.axvline(0, color=INK, linewidth=0.8)
        axes.set_xlabel(label)
        if any(len(dots) > 1 for dots in rows.values()):
            legend(canvas, axes)

    return draw


# ---- points


LARGEST, SMALLEST = 450.0, 12.0
"""Areas in square points: of the largest value, and what no point falls below."""
WIDE = 8.0
"""From this ratio of the largest to the smallest x on, the axis is logarithmic."""


class SizedPoint(NamedTuple):
    """A point whose area stands for `size`; NaN where that is not known."""

    name: str
    x: float
    y: Interval
    size: float


def scatter_chart(points: Sequence[SizedPoint], *, x: str = "", y: str = "", sizes: str = "", unit: str = "") -> Draw:
    """Points with their intervals; `sizes` is what the areas mean."""

    def draw(canvas: Canvas) -> None:
        axes, names = canvas.subplots(), [point.name for point in points]
        largest = max((point.size for point in points if not math.isnan(point.size)), default=math.nan)
        for point in points:
            look, ends = style(point.name, names), point.y.ends
            fill = "none" if math.isnan(point.size) else look.color
            how: dict[str, Any] = {"c": fill, "edgecolors": look.color, "marker": look.marker}
            axes.vlines(point.x, *ends, color=look.color, linewidth=0.9)
            axes.scatter(point.x, point.y.mean, s=area(point.size, largest), alpha=0.65, **how)
            axes.scatter([], [], s=40, label=display(point.name), **how)
        times = [point.x for point in points]
        if min(times) > 0 and max(times) / min(times) >= WIDE:
            axes.set_xscale("log", subs=[2, 5])
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_formatter("{x:g}")
        axes.set(xlabel=x, ylabel=y)
        axes.margins(0.14)
        axes.grid(axis="both")
        legend(canvas, axes, beside=True)
        shown = dict.fromkeys(float(f"{largest * share:.0e}") for share in (0.1, 0.4, 1.0))
        circles = {f"{value:g} {unit}": area(value, largest) for value in shown if value > 0}
        handles = [axes.scatter([], [], s=each, c="none", edgecolors=INK, linewidths=0.9) for each in circles.values()]
        if handles:
            look_of: dict[str, Any] = {"fontsize": 8, "title_fontsize": 8, "labelspacing": 2.0}
            canvas.legend(handles, list(circles), loc="outside right lower", title=sizes, **look_of)

    return draw


def area(size: float, largest: float) -> float:
    """The area of a point in square points: proportional to its size, but never too small to see."""
    return SMALLEST if math.isnan(size) else max(SMALLEST, LARGEST * size / largest)


# ---- matrices, cumulative shares, reliability


_GROUPS = ("#b0603c", "#0b7fab", "#d99a00", "#7a5cc0", "#4f9d4f")
_DASHES = ("-", "--", "-.", ":")


def heat_chart(
    values: Sequence[Sequence[float]],
    names: Sequence[str],
    label: str,
    *,
    columns: Sequence[str] | None = None,
    digits: int = 1,
    centre: float | None = None,
    x: str = "",
    y: str = "",
) -> Draw:
    """A matrix as coloured cells with their values; values above and below a centre differ in colour.

    `names` are those of the rows and, if `columns` are not given, also of the columns; `label` is what the numbers are.
    """
    below = names if columns is None else columns
    matrix = np.asarray(values, dtype=float)

    def draw(canvas: Canvas) -> None:
        axes = canvas.subplots()
        low, high, colours = float(np.nanmin(matrix)), float(np.nanmax(matrix)), "cividis"
        if centre is not None:
            reach = float(np.nanmax(np.abs(matrix - centre))) or 1.0
            low, high, colours = centre - reach, centre + reach, "RdBu"
        image = axes.imshow(matrix, cmap=colours, vmin=low, vmax=high, aspect="auto")
        axes.set_xticks(
            range(len(below)), list(map(display, below)), rotation=60, ha="right", rotation_mode="anchor", fontsize=7
        )
        axes.set_yticks(range(len(names)), list(map(display, names)), fontsize=7)
        axes.tick_params(length=0)
        axes.set(xlabel=x, ylabel=y)
        for (row, column), value in np.ndenumerate(matrix):
            if not np.isnan(value):
                red, green, blue, _ = image.cmap(image.norm(value))
                bright = 0.299 * red + 0.587 * green + 0.114 * blue > 0.55
                color = "#000001" if bright else "#fffffe"  # not the ink, which changes with the page
                axes.text(column, row, f"{value:.{digits}f}", ha="center", va="center", fontsize=6, color=color)
        canvas.colorbar(image, ax=axes, shrink=0.8, label=label).outline.set_visible(False)

    return draw


def share_chart(
    series: Mapping[str, Series],
    groups: Mapping[str, str],
    *,
    x: str,
    y: str,
    guide: tuple[float, float, str],
    limit: float,
) -> Draw:
    """Many rising lines in percent: one colour per group, and within a group one dash pattern per line.

    `guide` is a place on both axes to mark with faint lines, and its name; `limit` ends the horizontal axis.
    """

    def draw(canvas: Canvas) -> None:
        axes, known, drawn = canvas.subplots(), list(dict.fromkeys(groups.values())), dict[str, int]()
        for name, points in series.items():
            group = groups[name]
            place = drawn[group] = drawn.get(group, -1) + 1
            color = _GROUPS[(known.index(group) + place // len(_DASHES)) % len(_GROUPS)]
            dashes = _DASHES[place % len(_DASHES)]
            axes.plot(points.x, points.y, color=color, linestyle=dashes, linewidth=1.4, label=display(name))
        axes.grid(axis="y")
        axes.axvline(guide[0], color=FAINT, linewidth=1.2)
        axes.axhline(guide[1], color=FAINT, linewidth=1.2)
        axes.annotate(guide[2], (guide[0], 3), xytext=(3, 0), textcoords="offset points", fontsize=8)
        axes.set(xlim=(0, limit), ylim=(0, 101), xlabel=x, ylabel=y)
        legend(canvas, axes, beside=True)

    return draw


def reliability_chart(curves: Mapping[str, NDArray[np.float64]], titles: Mapping[str, str]) -> Draw:
    """How often answers of a confidence are right, above how many there are, for each method.

    A curve has the samples, summed confidences and right answers of each bin, (3, bins).
    """

    def draw(canvas: Canvas) -> None:
        grid = canvas.subplots(2, len(curves), sharex=True, sharey="row", squeeze=False, height_ratios=(3, 1))
        for (above, below), (label, curve) in zip(grid.T, curves.items(), strict=True):
            count, edges = curve[0], np.arange(curve.shape[1]) / curve.shape[1]
            bars = {"width": edges[1], "align": "edge", "color": style(label, list(curves)).color, "linewidth": 0}
            filled = count > 0
            above.bar(edges[filled], curve[2][filled] / count[filled], **bars)
            above.plot([0, 1], [0, 1], color=INK, linewidth=1.0, linestyle="--")
            above.set(xlim=(0, 1), ylim=(0, 1), title=titles[label])
            below.bar(edges, 100 * count / count.sum(), **bars)
            below.set_xlabel("confidence")
            below.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
            above.grid(axis="y")
            below.grid(axis="y")
        grid[0, 0].set_ylabel("share of right answers")
        grid[1, 0].set_ylabel("answers in %")

    return draw

"""Kinds of charts: lines and rankings, each as a function that draws it onto a canvas."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from neotta.report.figures import INK, Draw, legend_name, style

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
    """The points of a line: y over x, with half-widths of intervals if there are any."""

    x: Sequence[float]
    y: Sequence[float]
    half_width: Sequence[float] | None = None


class Panel(NamedTuple):
    """Lines that share axes.

    Attributes:
        series: The lines by name.
        x: Label of the horizontal axis.
        y: Label of the vertical axis.
        title: Of the panel.
        ticks: What the horizontal axis names.
        names: What to call ticks, if not by their numbers.
        doubling: Whether these ticks double, so that the axis is logarithmic.
        zero: Draw a line at zero.
    """

    series: Mapping[str, Series]
    x: str = ""
    y: str = ""
    title: str = ""
    ticks: Sequence[float] = ()
    names: Mapping[float, str] = {}
    doubling: bool = True
    zero: bool = False


def line_chart(*panels: Panel, stacked: bool = False) -> Draw:
    """Panels of lines side by side, or one below the other, with one legend."""

    def draw(canvas: Canvas) -> None:
        shape = (len(panels), 1) if stacked else (1, len(panels))
        every = canvas.subplots(*shape, squeeze=False, sharex=stacked, sharey=not stacked).ravel()
        for axes, panel in zip(every, panels, strict=True):
            lines(axes, panel.series)
            axes.set(xlabel=panel.x, ylabel=panel.y, title=panel.title)
            if is_percent(panel.y):
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


def is_percent(label: str) -> bool:
    """Whether an axis shows a share, such as an accuracy, which has no values beyond 0 and 100 %."""
    return "%" in label


def lines(axes: Axes, series: Mapping[str, Series]) -> None:
    """Lines with markers, and bands where there are intervals."""
    for name, points in series.items():
        look = style(name, list(series))
        marker = "" if len(points.x) > 40 else look.marker
        axes.plot(points.x, points.y, color=look.color, marker=marker, label=legend_name(name))
        if points.half_width is not None:
            low, high = np.subtract(points.y, points.half_width), np.add(points.y, points.half_width)
            if len(points.x) == 1:  # a band would have no width
                axes.errorbar(points.x, points.y, yerr=points.half_width, color=look.color, capsize=2, linewidth=0.9)
            axes.fill_between(points.x, low, high, color=look.color, alpha=0.15, linewidth=0)
    axes.grid(axis="y")


# ---- rankings


class Ranking(NamedTuple):
    """Horizontal bars, the first on top.

    Attributes:
        values: By name the value and the half-width of its interval; NaN where there is none.
        label: What the values are.
        digits: How many decimals are written beside a bar.
        sign: `"+"` for values that are changes.
        color: The method whose colour all bars have; by default every name has its own.
    """

    values: Mapping[str, Sequence[float]]
    label: str
    digits: int = 1
    sign: str = ""
    color: str = ""


def ranking_chart(*rankings: Ranking) -> Draw:
    """Rankings of the same names, side by side."""

    def draw(canvas: Canvas) -> None:
        every = canvas.subplots(1, len(rankings), sharey=True, squeeze=False)[0]
        for axes, ranking in zip(every, rankings, strict=True):
            draw_ranking(axes, ranking)

    return draw


def draw_ranking(axes: Axes, ranking: Ranking) -> None:
    """Bars with their intervals and values, a line at zero, and room for the numbers."""
    names = list(ranking.values)
    bars = [
        (place, name, value, 0.0 if math.isnan(half) else half)
        for place, (name, (value, half)) in enumerate(ranking.values.items())
        if not math.isnan(value)
    ]
    ends = [0.0, *(value + math.copysign(half, value) for _, _, value, half in bars)]
    if ranking.sign:  # of a change it has to be seen whether its interval includes zero
        ends += [value - math.copysign(half, value) for _, _, value, half in bars]
    span = max(ends) - min(ends) or 1.0
    for place, name, value, half in bars:
        axes.barh(place, value, height=0.72, color=style(ranking.color or name, names).color)
        if half:
            axes.errorbar(value, place, xerr=half, color=INK, capsize=2, linewidth=0.9)
        side = 1 if value >= 0 else -1
        text, align = f"{value:{ranking.sign}.{ranking.digits}f}", "left" if side > 0 else "right"
        axes.text(value + side * (half + 0.015 * span), place, text, va="center", ha=align, fontsize=7.5)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.axvline(0, color=INK, linewidth=0.8)
    room = 0.21 * span
    axes.set_xlim(min(ends) - (room if min(ends) < 0 else 0), max(ends) + room)
    if is_percent(ranking.label) and not ranking.sign:  # beyond it there is room for numbers, but there are no values
        axes.set_xticks([tick for tick in axes.get_xticks() if min(ends) <= tick <= min(100, max(ends) + room)])
    axes.set_xlabel(ranking.label)

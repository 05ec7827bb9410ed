"""Diagrams that one item each draws: matrices, cumulative shares, reliability."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from neotta.report.charts import Series, legend
from neotta.report.figures import FAINT, INK, Draw, legend_name, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

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

    Args:
        values: Rows of numbers.
        names: Names of the rows.
        label: What the numbers are.
        columns: Names of the columns; those of the rows if not given.
        digits: Decimals shown.
        centre: The value between the two colours.
        x: Label of the horizontal axis.
        y: Label of the vertical axis.
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
        axes.set_xticks(range(len(below)), below, rotation=60, ha="right", rotation_mode="anchor", fontsize=7)
        axes.set_yticks(range(len(names)), names, fontsize=7)
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
    """Many rising lines: one colour per group, and within a group one dash pattern per line.

    Args:
        series: The lines by name, in percent.
        groups: The group of each.
        x: Label of the horizontal axis.
        y: Label of the vertical axis.
        guide: A place on both axes to mark with faint lines, and what to call it.
        limit: Where the horizontal axis ends.
    """

    def draw(canvas: Canvas) -> None:
        axes, known, drawn = canvas.subplots(), list(dict.fromkeys(groups.values())), dict[str, int]()
        for name, points in series.items():
            group = groups[name]
            place = drawn[group] = drawn.get(group, -1) + 1
            color = _GROUPS[(known.index(group) + place // len(_DASHES)) % len(_GROUPS)]
            dashes = _DASHES[place % len(_DASHES)]
            axes.plot(points.x, points.y, color=color, linestyle=dashes, linewidth=1.4, label=legend_name(name))
        axes.grid(axis="y")
        axes.axvline(guide[0], color=FAINT, linewidth=1.2)
        axes.axhline(guide[1], color=FAINT, linewidth=1.2)
        axes.annotate(guide[2], (guide[0], 3), xytext=(3, 0), textcoords="offset points", fontsize=8)
        axes.set(xlim=(0, limit), ylim=(0, 101), xlabel=x, ylabel=y)
        legend(canvas, axes, beside=True)

    return draw


def reliability_chart(curves: Mapping[str, NDArray[np.float64]], titles: Mapping[str, str]) -> Draw:
    """How often answers of a confidence are right, above how many there are, for each method.

    Args:
        curves: By method the samples, summed confidences and right answers of each bin, (3, bins).
        titles: By method the title of its diagram.
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

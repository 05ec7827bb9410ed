"""Points whose area has a meaning, with their names beside them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

from neotta._words import printable
from neotta.report.figures import INK, Draw, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas
    from matplotlib.transforms import BboxBase

LARGEST, SMALLEST = 450.0, 12.0
"""Areas in square points: of the largest value, and what no point falls below."""
WIDE = 8.0
"""From this ratio of the largest to the smallest x on, the axis is logarithmic."""
GAPS = (2.0, 12.0, 24.0, 38.0, 54.0)
ANGLES = (0, 180, 90, 270, 30, 150, 330, 210, 60, 120, 300, 240)
"""Where a name is tried: how far from its point, in points, and in which direction, in degrees."""


class Point(NamedTuple):
    """A point; its area stands for `size`, its bar for the interval of y. NaN where there is none."""

    name: str
    x: float
    y: float
    size: float
    half_width: float = math.nan


def scatter_chart(points: Sequence[Point], *, x: str = "", y: str = "", sizes: str = "", unit: str = "") -> Draw:
    """Points with their names beside them, where they cover nothing.

    Args:
        points: What to draw.
        x: Label of the horizontal axis.
        y: Label of the vertical axis.
        sizes: What the areas mean.
        unit: The unit of `Point.size`.
    """

    def draw(canvas: Canvas) -> None:
        axes, names = canvas.subplots(), [point.name for point in points]
        largest = max((point.size for point in points if not math.isnan(point.size)), default=math.nan)
        for point in points:
            color = style(point.name, names).color
            if not math.isnan(point.half_width):
                axes.errorbar(point.x, point.y, yerr=point.half_width, color=color, capsize=2, linewidth=0.9)
            fill = "none" if math.isnan(point.size) else color
            axes.scatter(point.x, point.y, s=area(point.size, largest), c=fill, edgecolors=color, alpha=0.65)
        _set_x(axes, [point.x for point in points])
        axes.set(xlabel=printable(x), ylabel=printable(y))
        axes.margins(0.14)
        axes.grid(axis="both")
        if not math.isnan(largest):
            shown = dict.fromkeys(float(f"{largest * share:.0e}") for share in (0.1, 0.4, 1.0))
            look: dict[str, Any] = {"c": "none", "edgecolors": INK, "linewidths": 0.9}
            handles = [axes.scatter([], [], s=area(value, largest), **look) for value in shown if value > 0]
            labels = [f"{value:g} {unit}" for value in shown if value > 0]
            how: dict[str, Any] = {
                "loc": "outside right upper",
                "fontsize": 8,
                "title_fontsize": 8,
                "labelspacing": 2.0,
            }
            canvas.legend(handles, labels, title=printable(sizes), **how)
        _write_names(canvas, axes, points, largest)

    return draw


def area(size: float, largest: float) -> float:
    """The area of a point in square points: proportional to its size, but never too small to see."""
    return SMALLEST if math.isnan(size) else max(SMALLEST, LARGEST * size / largest)


def _set_x(axes: Axes, values: Sequence[float]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    if min(values) > 0 and max(values) / min(values) >= WIDE:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())


def _write_names(canvas: Canvas, axes: Axes, points: Sequence[Point], largest: float) -> None:
    """Put each name where it covers least of points, intervals and other names."""
    from matplotlib.transforms import Bbox

    canvas.draw_without_rendering()  # lays out the axes, so that places are known
    unit = canvas.dpi / 72  # pixels in a point
    discs: dict[Point, tuple[float, float, float]] = {}
    taken: list[BboxBase] = []
    for point in points:
        x, y = axes.transData.transform((point.x, point.y))
        radius = unit * math.sqrt(area(point.size, largest) / math.pi)
        reach = axes.transData.transform((point.x, point.y + point.half_width))[1] - y
        discs[point] = (x, y, radius)
        taken.append(Bbox.from_extents(x - radius, y - radius, x + radius, y + radius))
        if not math.isnan(reach):
            taken.append(Bbox.from_extents(x - 3 * unit, y - reach, x + 3 * unit, y + reach))
    frame = axes.get_window_extent()

    def covered(place: tuple[BboxBase, bool]) -> float:
        box = place[0]
        outside = box.width * box.height - _overlap(box, frame)
        return round(outside + sum(_overlap(box, other) for other in taken), 3)

    for point in sorted(points, key=lambda point: -point.y):
        how: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8, "annotation_clip": False}
        name = printable(point.name)  # now: its glyphs are measured to find a place
        text = axes.annotate(name, (point.x, point.y), (0, 0), textcoords="offset points", **how)
        size = text.get_window_extent()
        box, far = min(_places(discs[point], size.width + 3 * unit, size.height + unit, unit), key=covered)
        taken.append(box)
        x, y, _ = discs[point]
        text.xyann = ((box.x0 + box.x1) / 2 - x) / unit, ((box.y0 + box.y1) / 2 - y) / unit
        if far:
            line: dict[str, Any] = {"arrowstyle": "-", "color": INK, "linewidth": 0.7, "shrinkA": 5, "shrinkB": 0}
            axes.annotate("", text.xy, text.xyann, "data", "offset points", line, annotation_clip=False)


def _places(
    disc: tuple[float, float, float], width: float, height: float, unit: float
) -> Iterator[tuple[BboxBase, bool]]:
    """Boxes for a name around its point, the nearest first, and whether a line has to lead to the point."""
    from matplotlib.transforms import Bbox

    for gap, angle in product(GAPS, ANGLES):
        across, up = math.cos(math.radians(angle)), math.sin(math.radians(angle))
        x = disc[0] + across * (disc[2] + gap * unit + width / 2)
        y = disc[1] + up * (disc[2] + gap * unit + height / 2)
        yield Bbox.from_bounds(x - width / 2, y - height / 2, width, height), gap > GAPS[0]


def _overlap(one: BboxBase, other: BboxBase) -> float:
    """The area that two boxes share."""
    width = min(one.x1, other.x1) - max(one.x0, other.x0)
    height = min(one.y1, other.y1) - max(one.y0, other.y0)
    return float(max(0.0, width) * max(0.0, height))

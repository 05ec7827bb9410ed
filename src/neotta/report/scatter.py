"""Points whose area says something, with their names beside them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

from neotta.report.figures import INK, Draw, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas
    from matplotlib.text import Annotation

LARGEST, SMALLEST = 450.0, 12.0
"""Areas in square points: of the largest value, and what no point falls below."""
WIDE = 8.0
"""From this ratio of the largest to the smallest x on, the axis is logarithmic."""


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
        axes = canvas.subplots()
        axes.set(xlabel=x, ylabel=y)
        _draw(canvas, axes, points, sizes, unit)

    return draw


def _draw(canvas: Canvas, axes: Axes, points: Sequence[Point], sizes: str, unit: str) -> None:
    largest = max((point.size for point in points if not math.isnan(point.size)), default=math.nan)
    areas = [area(point.size, largest) for point in points]
    names = [point.name for point in points]
    for point, extent in zip(points, areas, strict=True):
        color = style(point.name, names).color
        if not math.isnan(point.half_width):
            axes.errorbar(point.x, point.y, yerr=point.half_width, color=color, capsize=2, linewidth=0.9)
        known = not math.isnan(point.size)
        axes.scatter(point.x, point.y, s=extent, c=color if known else "none", edgecolors=color, alpha=0.65)
    _set_x(axes, [point.x for point in points])
    axes.margins(0.14)
    axes.grid(axis="both")
    if not math.isnan(largest):
        _legend_of_sizes(canvas, axes, largest, sizes, unit)
    _write_names(canvas, axes, points, areas)


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


def _legend_of_sizes(canvas: Canvas, axes: Axes, largest: float, title: str, unit: str) -> None:
    shown = [value for value in dict.fromkeys(_round(largest * share) for share in (0.1, 0.4, 1.0)) if value > 0]
    handles = [
        axes.scatter([], [], s=area(value, largest), c="none", edgecolors=INK, linewidths=0.9) for value in shown
    ]
    labels = [f"{value:g} {unit}" for value in shown]
    canvas.legend(
        handles, labels, title=title, loc="outside right upper", fontsize=8, title_fontsize=8, labelspacing=2.0
    )


def _round(value: float) -> float:
    """To one digit."""
    return float(f"{value:.0e}")


# ---- where names go


class Box(NamedTuple):
    """A rectangle on the canvas, in points."""

    left: float
    bottom: float
    right: float
    top: float

    def overlap(self, other: Box) -> float:
        """The area that two of them share."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.top, other.top) - max(self.bottom, other.bottom)
        return max(0.0, width) * max(0.0, height)


def _write_names(canvas: Canvas, axes: Axes, points: Sequence[Point], areas: Sequence[float]) -> None:
    canvas.draw_without_rendering()  # lays out the axes, so that places are known
    scale = 72 / canvas.dpi

    def place(x: float, y: float) -> Any:
        return axes.transData.transform((x, y)) * scale

    centres = [place(point.x, point.y) for point in points]
    radii = [math.sqrt(extent / math.pi) for extent in areas]
    taken = [Box(x - r, y - r, x + r, y + r) for (x, y), r in zip(centres, radii, strict=True)]
    for point, (x, y) in zip(points, centres, strict=True):
        reach = 0.0 if math.isnan(point.half_width) else place(point.x, point.y + point.half_width)[1] - y
        taken.append(Box(x - 3, y - reach, x + 3, y + reach))
    frame = axes.get_window_extent()
    inside = Box(frame.x0 * scale, frame.y0 * scale, frame.x1 * scale, frame.y1 * scale)
    order = sorted(range(len(points)), key=lambda index: -points[index].y)
    for index in order:
        text = axes.annotate(points[index].name, (points[index].x, points[index].y), fontsize=8, annotation_clip=False)
        extent = text.get_window_extent()
        size = (extent.width * scale + 3, extent.height * scale + 1)
        box, far = _free_place(centres[index], radii[index], size, taken, inside)
        taken.append(box)
        _move(axes, text, box, centres[index], far)


def _free_place(
    centre: Any, radius: float, size: tuple[float, float], taken: Sequence[Box], inside: Box
) -> tuple[Box, bool]:
    """A place for a name near its point that covers as little as possible, and whether it is some way off."""
    width, height = size
    best: tuple[float, Box, bool] | None = None
    for gap, angle in product((2.0, 12.0, 24.0, 38.0, 54.0), (0, 180, 90, 270, 30, 150, 330, 210, 60, 120, 300, 240)):
        across, up = math.cos(math.radians(angle)), math.sin(math.radians(angle))
        x = centre[0] + across * (radius + gap + width / 2)
        y = centre[1] + up * (radius + gap + height / 2)
        box = Box(x - width / 2, y - height / 2, x + width / 2, y + height / 2)
        covered = sum(box.overlap(other) for other in taken) + width * height - box.overlap(inside)
        if best is None or covered < best[0] - 1e-6:
            best = (covered, box, gap > 2.0)
        if covered < 1e-6:
            break
    assert best is not None
    return best[1], best[2]


def _move(axes: Axes, text: Annotation, box: Box, centre: Any, far: bool) -> None:
    """Put a name into its box; from far off, a line leads to the middle of the point."""
    x, y = (box.left + box.right) / 2 - centre[0], (box.bottom + box.top) / 2 - centre[1]
    text.set(ha="center", va="center")
    text.xyann = (x, y)
    text.anncoords = "offset points"
    if far:
        line = {"arrowstyle": "-", "color": INK, "linewidth": 0.7, "shrinkA": 5, "shrinkB": 0}
        axes.annotate("", text.xy, (x, y), "data", "offset points", line, annotation_clip=False)

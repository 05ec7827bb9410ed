"""Figures: one look for all, each method in its own colour, as SVG that follows the page and as PNG.

Colours differ in lightness too, lines have markers and bars have names, so that all can be told apart in grey.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

INK, FAINT = "#1c2024", "#c9ccd2"
"""Colours of text and of grid lines; in SVG they give way to those of the page."""
_PAGE = {INK: "var(--ink, #1c2024)", FAINT: "var(--line, #c9ccd2)"}
_FONT = ["DejaVu Sans"]


class Style(NamedTuple):
    """How a method is drawn."""

    color: str
    marker: str


STYLES = {
    "none": Style("#8a8f98", "o"),
    "t3a": Style("#e0a100", "^"),
    "sar": Style("#00806a", "v"),
    "lame": Style("#d46fa8", "<"),
    "tent": Style("#d1491b", ">"),
    "cotta": Style("#7a5cc0", "s"),
    "foa": Style("#8fae00", "P"),
    "surgeon": Style("#8a4b35", "X"),
    "neo": Style("#0b7fab", "D"),
    "neo-continual": Style("#3fb1e0", "d"),
    "neo-mse": Style("#5a6fd8", "h"),
    "neo-bn": Style("#1f4e79", "p"),
}
_OTHERS = (
    Style("#b0413e", "*"),
    Style("#4f9d4f", "H"),
    Style("#9467bd", "8"),
    Style("#c58b2b", "^"),
    Style("#3d6fb6", "s"),
    Style("#7f7f7f", "o"),
)


def style(name: str, others: Sequence[str] = ()) -> Style:
    """The style of a method, or of its place among the names that are no methods."""
    found = STYLES.get(name)
    if found is not None:
        return found
    rest = [each for each in others if each not in STYLES]
    return _OTHERS[(rest.index(name) if name in rest else len(rest)) % len(_OTHERS)]


@dataclass(frozen=True)
class Figure:
    """A figure of a report.

    Attributes:
        name: Short and unique, for file names.
        title: What it shows.
        draw: Draws it onto an empty canvas.
        data: The numbers behind it, one dict per point.
        caption: How to read it.
        size: Width and height in inches.
    """

    name: str
    title: str
    draw: Callable[[Canvas], None]
    data: list[dict[str, Any]]
    caption: str = ""
    size: tuple[float, float] = (7.0, 3.6)

    def svg(self) -> str:
        """As an `<svg>` element whose texts and lines have the colours of the page around it."""
        buffer = io.StringIO()
        self._save(buffer, "svg", metadata={"Date": None, "Creator": None})
        text = buffer.getvalue()
        text = text[text.index("<svg") :]
        text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
        text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
        text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
        for ours, theirs in _PAGE.items():
            text = text.replace(ours, theirs)
        return text

    def png(self) -> bytes:
        """As a picture on white."""
        buffer = io.BytesIO()
        self._save(buffer, "png", dpi=160, facecolor="white")
        return buffer.getvalue()

    def _save(self, buffer: Any, format: str, **options: Any) -> None:
        import matplotlib as mpl
        from matplotlib.figure import Figure as Canvas

        with mpl.rc_context(_settings(self.name)):
            canvas = Canvas(figsize=self.size, layout="constrained")
            self.draw(canvas)
            canvas.savefig(buffer, format=format, **{"transparent": format == "svg", **options})


def _settings(salt: str) -> Any:
    return {
        "font.family": "sans-serif",
        "font.sans-serif": _FONT,
        "font.size": 9.0,
        "axes.edgecolor": FAINT,
        "axes.labelcolor": INK,
        "axes.titlesize": 9.5,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.titlecolor": INK,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": False,
        "axes.axisbelow": True,
        "grid.color": FAINT,
        "grid.linewidth": 0.6,
        "text.color": INK,
        "xtick.color": FAINT,
        "ytick.color": FAINT,
        "xtick.labelcolor": INK,
        "ytick.labelcolor": INK,
        "legend.frameon": False,
        "lines.linewidth": 1.8,
        "lines.markersize": 5.0,
        "svg.fonttype": "none",
        "svg.hashsalt": salt,
    }


# ---- kinds of drawing


class Series(NamedTuple):
    """Points of a line: y over x, with half-widths of intervals where there are any."""

    x: Sequence[float]
    y: Sequence[float]
    half_width: Sequence[float] | None = None


def lines(axes: Axes, series: Mapping[str, Series], names: Mapping[str, str] | None = None) -> None:
    """Lines with markers, and bands where there are intervals."""
    for name, points in series.items():
        look = style(name, list(series))
        label = (names or {}).get(name, name)
        many = len(points.x) > 40
        axes.plot(points.x, points.y, color=look.color, marker="" if many else look.marker, label=label)
        if points.half_width is not None:
            low = [y - half for y, half in zip(points.y, points.half_width, strict=True)]
            high = [y + half for y, half in zip(points.y, points.half_width, strict=True)]
            if len(points.x) == 1:  # a band would have no width
                axes.errorbar(points.x, points.y, yerr=points.half_width, color=look.color, capsize=2, linewidth=0.9)
            axes.fill_between(points.x, low, high, color=look.color, alpha=0.15, linewidth=0)
    axes.grid(axis="y")


_GROUPS = ("#b0603c", "#0b7fab", "#d99a00", "#7a5cc0", "#4f9d4f")
_DASHES = ("-", "--", "-.", ":")


def many_lines(
    axes: Axes, series: Mapping[str, Series], groups: Mapping[str, str], names: Mapping[str, str] | None = None
) -> None:
    """More lines than there are markers: one colour per group, and within it one kind of dashes per line."""
    known = list(dict.fromkeys(groups.get(name, "") for name in series))
    drawn: dict[str, int] = {}
    for name, points in series.items():
        group = groups.get(name, "")
        place = drawn[group] = drawn.get(group, -1) + 1
        color = _GROUPS[(known.index(group) + place // len(_DASHES)) % len(_GROUPS)]
        label = (names or {}).get(name, name)
        axes.plot(points.x, points.y, color=color, linestyle=_DASHES[place % len(_DASHES)], linewidth=1.4, label=label)
    axes.grid(axis="y")


@dataclass(frozen=True)
class Bars:
    """Groups of bars: for each group a value per name, NaN where there is none."""

    groups: Sequence[str]
    values: Mapping[str, Sequence[float]]
    half_width: Mapping[str, Sequence[float]] = field(default_factory=dict)


def bars(axes: Axes, data: Bars, *, digits: int = 1, sign: str = "") -> None:
    """Horizontal bars with their values written beside them, the first group on top."""
    names = list(data.values)
    height = 0.8 / max(1, len(names))
    drawn = []
    for place, name in enumerate(names):
        first = next((group for group, value in enumerate(data.values[name]) if not math.isnan(value)), None)
        for group, value in enumerate(data.values[name]):
            y = group + (place - (len(names) - 1) / 2) * height
            half = data.half_width.get(name, [math.nan] * len(data.groups))[group]
            label = name if group == first else None
            drawn.append(_Bar(y, value, half, height * 0.9, style(name, names).color, label))
    _draw_bars(axes, drawn, data.groups, f"{sign}.{digits}f")


def ranking(
    axes: Axes,
    values: Mapping[str, float],
    half_width: Mapping[str, float] | None = None,
    *,
    digits: int = 1,
    sign: str = "",
) -> None:
    """One horizontal bar per name in the colour of its method, with its value beside it, the first on top."""
    names = list(values)
    halves = half_width or {}
    drawn = [
        _Bar(place, value, halves.get(name, math.nan), 0.72, style(name, names).color, None)
        for place, (name, value) in enumerate(values.items())
    ]
    _draw_bars(axes, drawn, names, f"{sign}.{digits}f")


class _Bar(NamedTuple):
    y: float
    value: float
    half_width: float
    height: float
    color: str
    label: str | None

    @property
    def reach(self) -> float:
        """The half-width, 0 where there is none."""
        return 0.0 if math.isnan(self.half_width) else self.half_width

    @property
    def end(self) -> float:
        """Where the bar and its interval end."""
        return self.value + (self.reach if self.value >= 0 else -self.reach)


def _draw_bars(axes: Axes, drawn: Sequence[_Bar], names: Sequence[str], form: str) -> None:
    """Draw what has a value, names beside it, the first on top, a line at zero, and room for the numbers."""
    shown = [bar for bar in drawn if not math.isnan(bar.value)]
    ends = [0.0, *(bar.end for bar in shown)]
    if form.startswith("+"):  # of a change it has to be seen whether its interval includes zero
        ends += [2 * bar.value - bar.end for bar in shown]
    span = max(ends) - min(ends) or 1.0
    for bar in shown:
        axes.barh(bar.y, bar.value, height=bar.height, color=bar.color, label=bar.label)
        if bar.reach:
            axes.errorbar(bar.value, bar.y, xerr=bar.reach, color=INK, capsize=2, linewidth=0.9)
        side = 1 if bar.value >= 0 else -1
        axes.text(
            bar.end + side * 0.015 * span,
            bar.y,
            f"{bar.value:{form}}",
            va="center",
            ha="left" if side > 0 else "right",
            fontsize=7.5,
        )
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.axvline(0, color=INK, linewidth=0.8)
    room = 0.21 * span
    axes.set_xlim(min(ends) - (room if min(ends) < 0 else 0), max(ends) + room)


def heat(
    canvas: Canvas,
    axes: Axes,
    values: Sequence[Sequence[float]],
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    digits: int = 1,
    centre: float | None = None,
    label: str = "",
) -> None:
    """A matrix as coloured cells with their values; with a centre, what is above and below it differs in colour."""
    import numpy as np

    matrix = np.asarray(values, dtype=float)
    if centre is None:
        low, high, colours = float(np.nanmin(matrix)), float(np.nanmax(matrix)), "cividis"
    else:
        reach = float(np.nanmax(np.abs(matrix - centre))) or 1.0
        low, high, colours = centre - reach, centre + reach, "RdBu"
    image = axes.imshow(matrix, cmap=colours, vmin=low, vmax=high, aspect="auto")
    axes.set_xticks(range(len(columns)), columns, rotation=60, ha="right", rotation_mode="anchor", fontsize=7)
    axes.set_yticks(range(len(rows)), rows, fontsize=7)
    axes.tick_params(length=0)
    for row in range(matrix.shape[0]):
        for column in range(matrix.shape[1]):
            value = matrix[row, column]
            if not np.isnan(value):
                red, green, blue, _ = image.cmap(image.norm(value))
                bright = 0.299 * red + 0.587 * green + 0.114 * blue > 0.55
                color = "#000001" if bright else "#fffffe"  # not the ink, which changes with the page
                axes.text(column, row, f"{value:.{digits}f}", ha="center", va="center", fontsize=6, color=color)
    bar = canvas.colorbar(image, ax=axes, shrink=0.8, label=label)
    bar.outline.set_visible(False)


def legend(canvas: Canvas, axes: Axes, columns: int = 5, *, beside: bool = False) -> None:
    """The names of what is drawn, above it, or one under the other beside it."""
    handles, names = axes.get_legend_handles_labels()
    if handles and beside:
        canvas.legend(handles, names, loc="outside right upper", fontsize=8)
    elif handles:
        canvas.legend(handles, names, loc="outside upper left", ncols=min(columns, len(names)), fontsize=8)

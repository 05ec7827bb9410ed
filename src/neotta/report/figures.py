"""Figures: one look for all, each method in its own colour, as SVG that follows the page and as PNG.

Colours also differ in lightness, lines have markers and bars have names, so that they can be told apart in grey.
"""

from __future__ import annotations

import functools
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from neotta._words import printable
from neotta.adapters.registry import methods
from neotta.data.corruptions import CORRUPTIONS

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

Draw = Callable[["Canvas"], None]
"""Draws a figure onto an empty canvas."""

INK, FAINT = "#1c2024", "#c9ccd2"
"""Colours of text and of grid lines; SVG uses those of the page instead."""
_PAGE = {INK: "var(--ink, #1c2024)", FAINT: "var(--line, #c9ccd2)"}


class Style(NamedTuple):
    color: str
    marker: str


STYLES = {
    "none": Style("#8a8f98", "o"),
    "t3a": Style("#e0a100", "^"),
    "sar": Style("#00806a", "v"),
    "lame": Style("#d46fa8", "<"),
    "tent": Style("#d1491b", ">"),
    "cotta": Style("#4f9d4f", "s"),
    "foa": Style("#8fae00", "P"),
    "surgeon": Style("#8a4b35", "X"),
    "neo": Style("#0b7fab", "D"),
    "neo-stream": Style("#8a63c9", "*"),
    "neo-continual": Style("#3fb1e0", "d"),
    "neo-mse": Style("#5a6fd8", "h"),
    "neo-bn": Style("#1f4e79", "p"),
}
_OTHERS = (
    Style("#b0413e", "H"),
    Style("#9467bd", "8"),
    Style("#c58b2b", "^"),
    Style("#3d6fb6", "s"),
    Style("#7f7f7f", "o"),
)


def style(name: str, others: Sequence[str] = ()) -> Style:
    """The style of a method; other names are styled by their place among `others`."""
    known = STYLES.get(name)
    if known is not None:
        return known
    rest = [each for each in others if each not in STYLES]
    return _OTHERS[(rest.index(name) if name in rest else len(rest)) % len(_OTHERS)]


@functools.cache
def display(name: str) -> str:
    """What figures call a method or domain: `"NEO-Continual alpha=0.1"`, `"gaussian noise"`.

    Legends leave out names that begin with an underscore: these get a space in front.
    """
    method = re.split(r"@| \w+=", name)[0]
    known, parts = methods(), method.split("+")
    titles = [known[part].title if part in known else part for part in parts]
    shown = (method if titles == parts else " + ".join(titles)) + name[len(method) :]
    kind = name.split("/")[0]
    shown = kind.replace("_", " ") + name[len(kind) :] if kind in CORRUPTIONS else shown
    return f" {shown}" if shown.startswith("_") else shown


@dataclass(frozen=True)
class Figure:
    """A figure of a report: a unique name for files, the numbers behind it, one dict per point, its size in inches."""

    name: str
    title: str
    draw: Draw
    data: list[dict[str, Any]]
    caption: str = ""
    size: tuple[float, float] = (7.0, 3.6)

    def svg(self) -> str:
        """As an `<svg>` element whose texts and lines have the colours of the page around it."""
        buffer = io.StringIO()
        self._save(buffer, "svg", metadata={"Date": None, "Creator": None})
        text = buffer.getvalue()
        text = text[text.index("<svg") :]
        for extent in ("width", "height"):
            text = re.sub(rf'(<svg[^>]*?) {extent}="[^"]*"', r"\1", text, count=1)
        text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
        for ours, theirs in _PAGE.items():
            text = text.replace(ours, theirs)
        return text

    def png(self) -> bytes:
        buffer = io.BytesIO()
        self._save(buffer, "png", dpi=160, facecolor="white")
        return buffer.getvalue()

    def pdf(self) -> bytes:
        """As a page of vectors with embedded fonts, for a paper."""
        buffer = io.BytesIO()
        self._save(buffer, "pdf", metadata={"CreationDate": None})
        return buffer.getvalue()

    def written(self, kind: str) -> str | bytes:
        """As a file of its own: `png`, `svg` or `pdf`."""
        if kind == "svg":  # colours of a page are not known outside of it
            return functools.reduce(lambda text, pair: text.replace(pair[1], pair[0]), _PAGE.items(), self.svg())
        return self.pdf() if kind == "pdf" else self.png()

    def _save(self, buffer: Any, format: str, **options: Any) -> None:
        from matplotlib import style
        from matplotlib.figure import Figure as Canvas

        with style.context(["neotta.report.figures", {"svg.hashsalt": self.name}]):  # figures.mplstyle
            canvas = Canvas(figsize=self.size, layout="constrained")
            self.draw(canvas)
            _escape_names(canvas)
            canvas.savefig(buffer, format=format, **{"transparent": format != "png", **options})


def _escape_names(canvas: Canvas) -> None:
    from matplotlib.text import Text
    from matplotlib.ticker import FuncFormatter

    for text in canvas.findobj(Text):
        text.set_text(printable(text.get_text()))
    for axis in (axis for axes in canvas.axes for axis in (axes.xaxis, axes.yaxis)):
        if isinstance(formatter := axis.get_major_formatter(), FuncFormatter):  # of ticks with names
            formatter.func = _escaped(formatter.func)


def _escaped(names: Callable[..., str]) -> Callable[..., str]:
    return lambda value, place=None: printable(names(value, place))

"""The demonstration of a real shift as one HTML page and as a table for the terminal."""

from __future__ import annotations

import numpy as np
from rich.console import Console
from rich.table import Table

from neotta.evaluate.real_demo import MethodResult, RealDemo
from neotta.report.html import data_uri, render
from neotta.report.terminal import bar

_STYLES = {"helps": "bold cyan", "hurts": "bold red"}
_BESIDE = 66  # columns of the terminal that are not bars


def measured(demo: RealDemo) -> str:
    """Describe what was done."""
    return (
        f"A small vision transformer, trained on MNIST, named {demo.samples:,} handwritten digits of another "
        "collection: other writers, another scanner, 8 x 8 instead of 28 x 28 pixels. Nobody made up this shift. Every "
        "method saw the same images once, 64 at a time, without their labels, with its default options."
    )


def real_demo_table(demo: RealDemo, console: Console) -> Table:
    """One row per method, the model as it is first."""
    width = min(30, max(10, console.width - _BESIDE))
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("Method", no_wrap=True)
    for heading in ("Accuracy", "Difference"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("")
    table.add_column("", no_wrap=True)
    plain = demo.plain.accuracy / 100
    for result in demo.results:
        drawn = bar(plain, result.accuracy / 100, width, console.options.ascii_only)
        words = (result.title, f"{result.accuracy:.1f}", difference(result), result.verdict)
        table.add_row(*words, drawn, style=_STYLES.get(result.verdict, ""))
    return table


def difference(result: MethodResult) -> str:
    """`+3.1 [+2.0, +4.2]`; empty for the model as it is."""
    return "" if result.difference is None else result.difference.interval.text(1, "+")


def real_demo_page(demo: RealDemo, seconds: float) -> str:
    """Make the page.

    Args:
        demo: What was measured.
        seconds: How long that took.
    """
    return render(
        "real_demo.html",
        demo=demo,
        rows=[(result, difference(result)) for result in demo.results],
        measured=measured(demo),
        strip=data_uri(np.concatenate(demo.images, axis=1)),
        classes=len(demo.images),
        seconds=seconds,
    )

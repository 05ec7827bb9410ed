"""The demonstrations, of corruptions and of a real shift, as HTML pages and as tables for the terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from rich.text import Text

from neotta.evaluate.demo import FRAMES, LEVEL, METHODS, Demo, DemoDomain
from neotta.evaluate.real_demo import MethodResult, RealDemo
from neotta.report.html import data_uri, render

EXAMPLES = 16
"""Largest number of images of each kind on the page."""

STYLES = dict(zip(("without", "neo", "stream"), METHODS, strict=True))
"""The methods, by their class in the style sheet."""

WHICH = 'Classes mixed? Take NEO: neotta.adapt(model, "neo"). A camera? Take NEO-Stream: neotta.adapt(model).'
"""Which rule to take when."""


def demo_page(demo: Demo, seconds: float) -> str:
    """The page of a demonstration that took so many seconds."""
    return render(
        "demo.html",
        demo=demo,
        headline=headline(demo),
        rows=[(title(domain.name), domain) for domain in demo.domains],
        summary=summary(demo),
        one_digit=one_digit(demo),
        which=WHICH,
        plots=_plots(demo),
        samples=len(demo.clean.labels),
        side=len(demo.clean.image(0)),
        level=LEVEL,
        window=FRAMES,
        strips=_strips(demo),
        fixed=_examples(demo.real, demo.real.fixed("neo")),
        broken=_examples(demo.real, demo.real.broken("neo")),
        seconds=seconds,
    )


def title(name: str) -> str:
    """Write the name of a domain as one reads it: `jpeg_compression` is "JPEG compression"."""
    words = name.replace("_", " ").replace("jpeg", "JPEG")
    return words[0].upper() + words[1:]


def headline(demo: Demo) -> str:
    """What the real shift costs, and what NEO wins back."""
    real = demo.real
    return (
        f"A model trained on MNIST is right on {100 * demo.source_accuracy:.1f} % of MNIST's digits. On "
        f"{len(real.labels):,} digits by other people it is right on {100 * real.accuracy('none'):.1f} %; with NEO on "
        f"{100 * real.accuracy('neo'):.1f} %. NEO fixed {len(real.fixed('neo'))} answers and broke "
        f"{len(real.broken('neo'))}. It saw no labels and trained nothing."
    )


def summary(demo: Demo) -> str:
    """Say for each rule how many answers it fixed and broke over all corruptions, and where that is not chance."""
    return " ".join(
        f"{name} fixed {sum(len(domain.fixed(method)) for domain in demo.corrupted)} answers and broke "
        f"{sum(len(domain.broken(method)) for domain in demo.corrupted)}: better on "
        f"{[domain.verdict(method) for domain in demo.corrupted].count(1)} of {len(demo.corrupted)} corruptions, worse "
        f"on {[domain.verdict(method) for domain in demo.corrupted].count(-1)}, the rest may be chance."
        for name, method in (("NEO", "neo"), ("NEO-Stream", "neo-stream"))
    )


def one_digit(demo: Demo) -> str:
    """Say what happens to a camera that sees only one digit."""
    plain, neo, stream = (f"{100 * demo.clean.cameras.accuracy(method):.1f} %" for method in METHODS)
    return (
        f"A camera that sees only one digit, clean images: the plain model is right on {plain} of the frames, NEO on "
        f"{neo}, NEO-Stream on {stream}."
    )


def _plots(demo: Demo) -> list[dict[str, Any]]:
    kinds = (("Clean images", demo.clean.cameras), (f"Mean of {len(demo.corrupted)} corruptions", demo.cameras))
    return [
        {
            "title": name,
            "frames": cameras.frames,
            "lines": {style: _points(cameras.curve(method)) for style, method in STYLES.items()},
            "accuracies": {style: cameras.accuracy(method) for style, method in STYLES.items()},
        }
        for name, cameras in kinds
        if cameras.frames > 1
    ]


def _points(curve: NDArray[np.float64]) -> str:
    across = np.linspace(0, 100, len(curve))
    return " ".join(f"{x:.1f},{100 * (1 - y):.1f}" for x, y in zip(across, curve, strict=True))


def _strips(demo: Demo) -> list[tuple[str, str]]:
    chosen = np.unique(demo.clean.labels, return_index=True)[1]
    rows = [(title(domain.name), [domain.image(int(index)) for index in chosen]) for domain in demo.domains]
    return [(name, data_uri(np.concatenate(images, axis=1))) for name, images in rows]


def _examples(domain: DemoDomain, rows: NDArray[np.int64]) -> list[dict[str, Any]]:
    return [
        {
            "image": data_uri(domain.image(int(row))),
            "truth": int(domain.labels[row]),
            "plain": int(domain.runs["none"].stats.predicted[row]),
            "neo": int(domain.runs["neo"].stats.predicted[row]),
        }
        for row in rows[:EXAMPLES]
    ]


WITHOUT, WON, LOST = "bright_black", "cyan", "red"
VERDICTS = {1: "cyan", -1: "red", 0: ""}
_COLUMNS = 54  # the width of the columns beside the bars


def demo_table(demo: Demo, console: Console) -> Table:
    """Make the table of accuracies: digits mixed (a real shift first), then one digit at a time."""
    width = min(40, max(6, console.width - _COLUMNS))
    ascii_only = console.options.ascii_only
    table = Table(box=None, header_style="bold", pad_edge=False, show_footer=False)
    table.add_column("Mixed digits", no_wrap=True)
    for heading in ("Plain", "NEO", "NEO-Stream"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column(Text("0" + "100".rjust(width - 1), style="bold"), no_wrap=True)

    def add(name: str, share: Callable[[str], float], verdict: Callable[[str], int], drawn: str) -> None:
        cells = [Text(f"{100 * share('none'):.1f}")]
        for method in METHODS[1:]:
            beyond = verdict(method)
            cells.append(Text(f"{100 * share(method):.1f}{'*' if beyond else ' '}", style=VERDICTS[beyond]))
        table.add_row(name, *cells, bar(share("none"), share(drawn), width, ascii_only))

    add("A real shift", demo.real.accuracy, demo.real.verdict, "neo")
    table.add_section()
    for domain in demo.domains:
        add(title(domain.name), domain.accuracy, domain.verdict, "neo")
    mean = f"Mean of {len(demo.corrupted)}"
    add(mean, demo.mean, demo.verdict, "neo")
    table.add_section()
    table.add_row(Text("One digit at a time", style="bold"))
    for name, cameras in (("Clean", demo.clean.cameras), (mean, demo.cameras)):
        add(name, cameras.accuracy, lambda method: 0, "neo-stream")
    return table


def legend(console: Console) -> Text:
    """Explain the bars."""
    full, won, lost = _blocks(console.options.ascii_only)
    return Text.assemble(
        "Accuracy in percent; * beyond chance. ",
        (full, WITHOUT),
        " plain, ",
        (won, WON),
        " gained, ",
        (lost, LOST),
        " lost: by NEO on mixed digits, by NEO-Stream on one digit at a time.",
    )


def bar(without: float, adapted: float, width: int, ascii_only: bool = False) -> Text:
    """Draw two accuracies in 0..1 as one bar: what both reach, and what adapting gains or loses."""
    full, won, lost = _blocks(ascii_only)
    low, high = sorted((round(without * width), round(adapted * width)))
    block, style = (won, WON) if adapted > without else (lost, LOST)
    return Text.assemble((full * low, WITHOUT), (block * (high - low), style), " " * (width - high))


def _blocks(ascii_only: bool) -> tuple[str, str, str]:
    return ("=", "+", "-") if ascii_only else ("█", "▓", "░")


# ---- a real shift

_VERDICT_STYLES = {"helps": "bold cyan", "hurts": "bold red"}


def real_measured(demo: RealDemo) -> str:
    """Describe what was done."""
    return (
        f"A small vision transformer, trained on MNIST, named {demo.samples:,} handwritten digits of another "
        "collection: other writers, another scanner, 8 x 8 instead of 28 x 28 pixels. Nobody made up this shift. Every "
        "method saw the same images once, 64 at a time, without their labels, with its default options."
    )


def real_demo_table(demo: RealDemo, console: Console) -> Table:
    """One row per method, the model as it is first."""
    width = min(30, max(10, console.width - 66))
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
        table.add_row(*words, drawn, style=_VERDICT_STYLES.get(result.verdict, ""))
    return table


def difference(result: MethodResult) -> str:
    """`+3.1 [+2.0, +4.2]`; empty for the model as it is."""
    return "" if result.difference is None else result.difference.interval.text(1, "+")


def real_demo_page(demo: RealDemo, seconds: float) -> str:
    """The page of a demonstration of a real shift that took so many seconds."""
    return render(
        "real_demo.html",
        demo=demo,
        rows=[(result, difference(result)) for result in demo.results],
        measured=real_measured(demo),
        strip=data_uri(np.concatenate(demo.images, axis=1)),
        classes=len(demo.images),
        seconds=seconds,
    )

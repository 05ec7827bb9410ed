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


def demo_page(demo: Demo, seconds: float) -> str:
    """The page of a demonstration that took so many seconds."""
    return render(
        "demo.html",
        demo=demo,
        rows=[(title(domain.name), domain) for domain in demo.domains],
        measured=measured(demo),
        summary=summary(demo),
        one_digit=one_digit(demo),
        plots=_plots(demo),
        samples=len(demo.clean.labels),
        side=len(demo.clean.image(0)),
        level=LEVEL,
        window=FRAMES,
        step=_step(max(max(len(domain.fixed), len(domain.broken)) for domain in demo.domains)),
        strips=_strips(demo),
        fixed=_examples(demo, lambda domain: domain.fixed),
        broken=_examples(demo, lambda domain: domain.broken),
        total_fixed=sum(len(domain.fixed) for domain in demo.domains),
        total_broken=sum(len(domain.broken) for domain in demo.domains),
        seconds=seconds,
    )


def title(name: str) -> str:
    """Write the name of a domain as one reads it: `jpeg_compression` is "JPEG compression"."""
    words = name.replace("_", " ").replace("jpeg", "JPEG")
    return words[0].upper() + words[1:]


def measured(demo: Demo) -> str:
    """Describe what was done."""
    return (
        f"A small vision transformer, trained on clean handwritten digits, named {len(demo.clean.labels)} digits "
        f"it had never seen: as they are, and damaged in {len(demo.corrupted)} ways (severity {demo.severity} of 5). "
        f"With NEO and with NEO-Stream the same model saw the same images, {demo.batch_size} at a time, without their "
        "labels, and started from scratch for every kind of damage."
    )


def summary(demo: Demo) -> str:
    """Summarise in one sentence where NEO-Stream helped and where it did not."""
    verdicts = [domain.verdict for domain in demo.corrupted]
    better, worse, level = (verdicts.count(verdict) for verdict in (1, -1, 0))
    return (
        f"Of {len(verdicts)} corruptions, NEO-Stream is better than the model alone on {better} and worse on {worse}; "
        f"on {level} the difference is too small to tell from chance."
    )


def one_digit(demo: Demo) -> str:
    """Summarise in one sentence what happens to a camera that sees only one digit."""
    clear, damaged = (
        [f"{100 * each.accuracy(m):.1f} %" for m in METHODS] for each in (demo.clean.cameras, demo.cameras)
    )
    return (
        f"A camera that sees only one digit (mean over {demo.clean.cameras.count} cameras, clean images): the model "
        f"alone is right in {clear[0]} of the frames, with NEO in {clear[1]}, with NEO-Stream in {clear[2]}; "
        f"over the corruptions {damaged[0]}, {damaged[1]} and {damaged[2]}."
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


def _step(largest: int) -> int:
    power = 1
    while 50 * power < largest:
        power *= 10
    return next(k * power for k in (1, 2, 3, 4, 5, 6, 8, 10) if 5 * k * power >= largest)


def _examples(demo: Demo, which: Callable[[DemoDomain], NDArray[np.int64]]) -> list[dict[str, Any]]:
    ranked = [(rank, domain, index) for domain in demo.domains for rank, index in enumerate(which(domain))]
    ranked.sort(key=lambda entry: entry[0])  # stable: the order of the domains stays
    return [
        {
            "domain": title(domain.name),
            "before": data_uri(demo.clean.image(int(index))),
            "after": data_uri(domain.image(int(index))),
            "truth": int(domain.labels[index]),
            "answers": {
                name: (int(run.stats.predicted[index]), float(run.stats.confidence[index]))
                for name, run in (("Without", domain.without), ("NEO", domain.neo), ("NEO-Stream", domain.stream))
            },
        }
        for _, domain, index in ranked[:EXAMPLES]
    ]


WITHOUT, WON, LOST = "bright_black", "cyan", "red"
VERDICTS = {1: "bold cyan", -1: "bold red", 0: ""}
_COLUMNS = 61  # the width of the columns beside the bars


def demo_table(demo: Demo, console: Console) -> Table:
    """Make the table of accuracies: one row per domain, their mean, and cameras that see one digit only."""
    width = min(40, max(10, console.width - _COLUMNS))
    ascii_only = console.options.ascii_only
    table = Table(box=None, header_style="bold", pad_edge=False, show_footer=False)
    table.add_column("Domain", no_wrap=True)
    for heading in ("Without", "NEO", "NEO-Stream", "Gain"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column(Text("0" + "100".rjust(width - 1), style="bold"), no_wrap=True)

    def add(name: str, without: float, neo: float, stream: float, verdict: int = 0) -> None:
        gain = Text(f"{100 * (stream - without):+.1f}{'*' if verdict else ' '}", style=VERDICTS[verdict])
        shares = (f"{100 * share:.1f}" for share in (without, neo, stream))
        table.add_row(name, *shares, gain, bar(without, stream, width, ascii_only))

    for domain in demo.domains:
        shares = (domain.accuracy_without, domain.accuracy_neo, domain.accuracy_stream)
        add(title(domain.name), *shares, domain.verdict)
    table.add_section()
    name = f"Mean of {len(demo.corrupted)}"
    add(name, demo.mean_without, demo.mean_neo, demo.mean_stream, demo.verdict)
    table.add_section()
    for images, cameras in (("Clean", demo.clean.cameras), (name, demo.cameras)):
        without, neo, stream = (cameras.accuracy(method) for method in METHODS)
        add(f"{images}, one digit", without, neo, stream)
    return table


def legend(console: Console) -> Text:
    """Explain the bars."""
    full, won, lost = _blocks(console.options.ascii_only)
    return Text.assemble(
        "Accuracy in percent. ",
        (full, WITHOUT),
        " reached without and with NEO-Stream, ",
        (won, WON),
        " gained by NEO-Stream, ",
        (lost, LOST),
        " lost. * beyond chance. One digit: cameras that see only one digit.",
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

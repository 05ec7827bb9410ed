"""The demonstration as one HTML page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from neotta.evaluate.demo import LEVEL, METHODS, Demo, DemoDomain
from neotta.evaluate.demo_cameras import FRAMES
from neotta.report.html import data_uri, render

EXAMPLES = 16
"""Largest number of images of each kind on the page."""

STYLES = dict(zip(("without", "neo", "stream"), METHODS, strict=True))
"""The methods, by their class in the style sheet."""


@dataclass(frozen=True)
class Example:
    """One image whose prediction NEO-Stream changed, as the page shows it."""

    domain: str
    before: str
    after: str
    truth: int
    without: int
    without_confidence: float
    neo: int
    neo_confidence: float
    stream: int
    stream_confidence: float


def demo_page(demo: Demo, seconds: float) -> str:
    """Make the page.

    Args:
        demo: What was measured.
        seconds: How long that took.
    """
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


@dataclass(frozen=True)
class Plot:
    """Accuracy over the frames of cameras that see one digit, as the page draws it.

    Attributes:
        title: What the cameras see.
        frames: Length of the horizontal axis.
        lines: By class of the style sheet, the points of a line as SVG writes them, in a box of 100 by 100.
        accuracies: By class of the style sheet, the accuracy over all frames.
    """

    title: str
    frames: int
    lines: dict[str, str]
    accuracies: dict[str, float]


def _plots(demo: Demo) -> list[Plot]:
    kinds = (("Clean images", demo.clean.cameras), (f"Mean of {len(demo.corrupted)} corruptions", demo.cameras))
    return [
        Plot(
            name,
            cameras.frames,
            {style: _points(cameras.curve(method)) for style, method in STYLES.items()},
            {style: cameras.accuracy(method) for style, method in STYLES.items()},
        )
        for name, cameras in kinds
        if cameras.frames > 1
    ]


def _points(curve: NDArray[np.float64]) -> str:
    across = np.linspace(0, 100, len(curve))
    return " ".join(f"{x:.1f},{100 * (1 - y):.1f}" for x, y in zip(across, curve, strict=True))


def _strips(demo: Demo) -> list[tuple[str, str]]:
    """One row of digits per domain, the same ones in each: the first of every class in the stream."""
    chosen = np.unique(demo.clean.labels, return_index=True)[1]
    rows = [(title(domain.name), [domain.image(int(index)) for index in chosen]) for domain in demo.domains]
    return [(name, data_uri(np.concatenate(images, axis=1))) for name, images in rows]


def _step(largest: int) -> int:
    """Choose the distance between the marks of an axis that reaches `largest` in five steps."""
    power = 1
    while 50 * power < largest:
        power *= 10
    return next(k * power for k in (1, 2, 3, 4, 5, 6, 8, 10) if 5 * k * power >= largest)


def _examples(demo: Demo, which: Callable[[DemoDomain], NDArray[np.int64]]) -> list[Example]:
    """Take the first image of every domain, then the second of every domain, and so on."""
    found = [(rank, domain, index) for domain in demo.domains for rank, index in enumerate(which(domain))]
    found.sort(key=lambda entry: entry[0])  # stable: the order of the domains stays
    return [_example(demo, domain, int(index)) for _, domain, index in found[:EXAMPLES]]


def _example(demo: Demo, domain: DemoDomain, index: int) -> Example:
    return Example(
        domain=title(domain.name),
        before=data_uri(demo.clean.image(index)),
        after=data_uri(domain.image(index)),
        truth=int(domain.labels[index]),
        without=int(domain.without.stats.predicted[index]),
        without_confidence=float(domain.without.stats.confidence[index]),
        neo=int(domain.neo.stats.predicted[index]),
        neo_confidence=float(domain.neo.stats.confidence[index]),
        stream=int(domain.stream.stats.predicted[index]),
        stream_confidence=float(domain.stream.stats.confidence[index]),
    )

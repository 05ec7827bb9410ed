"""The demonstration: what corrupted images do to the bundled model, and what NEO-Stream and NEO win back.

The digits are seen twice in every domain: mixed, and by ten cameras that each see one digit only. The rules predict and
adapt batch by batch, and are reset before each domain and each camera.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from rich.text import Text

from neotta.adapters.registry import create
from neotta.data.base import Image
from neotta.data.corruptions import CORRUPTIONS
from neotta.data.order import Order
from neotta.errors import OptionError
from neotta.evaluate.domains import CLEAN
from neotta.evaluate.plan import Plan
from neotta.evaluate.predictions import RunResult
from neotta.evaluate.session import Session
from neotta.report.html import data_uri, render

METHODS = {"none": "without", "neo": "neo", "neo-stream": "stream"}
"""The methods, with their class in the style sheet."""
SEVERITY = 5
"""The level at which methods are usually compared, and where this model is hurt but still works."""
BATCH_SIZE = 64
FRAMES = 8
"""Number of frames that a camera's model sees at a time, and over which accuracy is averaged in the plot."""
LEVEL = 0.05
"""The significance level of a difference."""
EXAMPLES = 16
"""Largest number of images of each kind on the page."""

Indices = NDArray[np.int64]
Cameras = Mapping[str, tuple[NDArray[np.bool_], ...]]
"""By method, whether each answer of each camera is right: (frames,) for every camera."""


@dataclass(frozen=True)
class DemoDomain:
    """One kind of images, `"clean"` or a corruption: answers by method, mixed and camera by camera, and the images."""

    name: str
    results: Mapping[str, RunResult]
    cameras: Cameras
    image: Callable[[int], Image]

    @property
    def labels(self) -> Indices:
        classes: Indices = self.results["none"].stats.labels.numpy()
        return classes

    def right(self, method: str) -> NDArray[np.bool_]:
        return _right(self.results[method])

    def accuracy(self, method: str) -> float:
        return float(self.right(method).mean())

    @property
    def fixed(self) -> Indices:
        """The rows that NEO-Stream gets right and the model as it is gets wrong."""
        return np.flatnonzero(~self.right("none") & self.right("neo-stream"))

    @property
    def broken(self) -> Indices:
        """The rows that the model as it is gets right and NEO-Stream gets wrong."""
        return np.flatnonzero(self.right("none") & ~self.right("neo-stream"))

    @property
    def verdict(self) -> int:
        """1 where NEO-Stream is better, -1 where it is worse, 0 where the difference may be chance."""
        return _verdict(len(self.fixed), len(self.broken))


@dataclass(frozen=True)
class Demo:
    """All that was measured: the clean images first, then the corruptions, all with the same images in the same order.

    `parameters` is the size of the model, `state` that of what NEO keeps beside it.
    """

    domains: tuple[DemoDomain, ...]
    parameters: int
    state: int

    @property
    def clean(self) -> DemoDomain:
        return self.domains[0]

    @property
    def corrupted(self) -> tuple[DemoDomain, ...]:
        return self.domains[1:]

    def mean(self, method: str) -> float:
        return float(np.mean([domain.accuracy(method) for domain in self.corrupted]))

    @property
    def cameras(self) -> Cameras:
        return {
            method: tuple(each for domain in self.corrupted for each in domain.cameras[method]) for method in METHODS
        }

    @property
    def verdict(self) -> int:
        """As for one domain, for the mean: each image counts once, with what is won on it over all corruptions."""
        won = np.zeros(len(self.clean.labels), dtype=np.int64)
        for domain in self.corrupted:
            won[domain.fixed] += 1
            won[domain.broken] -= 1
        return _verdict(int((won > 0).sum()), int((won < 0).sum()))


def run(samples: int | None = None, on_domain: Callable[[str, int, int], None] | None = None) -> Demo:
    """Measure the model on clean images and on each of 15 corruptions; `samples` of the 600 test images, or all."""
    bench = Session(Plan(corruptions=["all"]), workers=0)
    names = bench.data.names([CLEAN, *CORRUPTIONS], [SEVERITY])
    available = len(bench.data.dataset(CLEAN))
    if samples is not None and not 1 <= samples <= available:
        raise OptionError(f"samples is {samples}: there are 1 to {available} test images")
    index = np.random.default_rng(0).permutation(available)[:samples]
    domains = []
    for done, name in enumerate(names):
        if on_domain is not None:
            on_domain(name.partition("/")[0], done, len(names))
        domains.append(_measure(bench, name, index))
    parameters = sum(parameter.numel() for parameter in bench.model.parameters())
    return Demo(tuple(domains), parameters, bench.head.in_features)


def _measure(bench: Session, name: str, index: Indices) -> DemoDomain:
    dataset = bench.data.dataset(name)

    def predict(method: str, places: Indices, size: int) -> RunResult:
        ids = tuple(dataset.ids[place] for place in places)
        order = Order("list", 0, (name,), np.zeros(len(places), dtype=np.int64), places, ids, size)
        return bench.runner.predict((order,), create(method, bench.model), from_cache=True)

    results = {method: predict(method, index, BATCH_SIZE) for method in METHODS}
    labels = results["none"].stats.labels.numpy()
    streams = [index[labels == label] for label in np.unique(labels)]
    cameras = {method: tuple(_right(predict(method, stream, FRAMES)) for stream in streams) for method in METHODS}
    return DemoDomain(name.partition("/")[0], results, cameras, lambda row: dataset.read(int(index[row])))


def _right(result: RunResult) -> NDArray[np.bool_]:
    return np.asarray((result.stats.predicted == result.stats.labels).numpy())


def _verdict(won: int, lost: int) -> int:
    from scipy.stats import binomtest

    beyond_chance = won + lost > 0 and binomtest(won, won + lost).pvalue < LEVEL
    return int(np.sign(won - lost)) if beyond_chance else 0


def share(cameras: Cameras, method: str) -> float:
    """Share of right answers over all frames of all cameras."""
    return float(np.concatenate(cameras[method]).mean())


def curve(cameras: Cameras, method: str) -> NDArray[np.float64]:
    """Share of right answers among the last frames of all cameras, (frames,): as many frames as every camera has."""
    frames = min(map(len, cameras[method]))
    each = np.mean([camera[:frames] for camera in cameras[method]], axis=0)
    sums = np.concatenate([[0.0], np.cumsum(each)])
    last = np.arange(1, len(sums))
    first = np.maximum(last - FRAMES, 0)
    return np.asarray((sums[last] - sums[first]) / (last - first))


# ---- in words


def title(name: str) -> str:
    """Write the name of a domain as one reads it: `jpeg_compression` is "JPEG compression"."""
    words = name.replace("_", " ").replace("jpeg", "JPEG")
    return words[0].upper() + words[1:]


def measured(demo: Demo) -> str:
    return (
        f"A small vision transformer, trained on clean handwritten digits, named {len(demo.clean.labels)} digits "
        f"it had never seen: as they are, and damaged in {len(demo.corrupted)} ways (severity {SEVERITY} of 5). "
        f"With NEO and with NEO-Stream the same model saw the same images, {BATCH_SIZE} at a time, without their "
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
    clean = demo.clean.cameras
    clear, damaged = ([f"{100 * share(each, method):.1f} %" for method in METHODS] for each in (clean, demo.cameras))
    return (
        f"A camera that sees only one digit (mean over {len(clean['none'])} cameras, clean images): the model "
        f"alone is right in {clear[0]} of the frames, with NEO in {clear[1]}, with NEO-Stream in {clear[2]}; "
        f"over the corruptions {damaged[0]}, {damaged[1]} and {damaged[2]}."
    )


# ---- the page


def demo_page(demo: Demo, seconds: float) -> str:
    return render(
        "demo.html",
        demo=demo,
        rows=[(title(domain.name), domain) for domain in demo.domains],
        one_digit_share={method: share(demo.clean.cameras, method) for method in METHODS},
        measured=measured(demo),
        summary=summary(demo),
        one_digit=one_digit(demo),
        plots=_plots(demo),
        samples=len(demo.clean.labels),
        side=len(demo.clean.image(0)),
        severity=SEVERITY,
        batch_size=BATCH_SIZE,
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


def _plots(demo: Demo) -> list[dict[str, Any]]:
    kinds = {"Clean images": demo.clean.cameras, f"Mean of {len(demo.corrupted)} corruptions": demo.cameras}
    plots: list[dict[str, Any]] = []
    for name, cameras in kinds.items():
        curves = {style: curve(cameras, method) for method, style in METHODS.items()}
        lines = {style: _points(each) for style, each in curves.items()}
        accuracies = {style: share(cameras, method) for method, style in METHODS.items()}
        plots.append({"title": name, "frames": len(curves["neo"]), "lines": lines, "accuracies": accuracies})
    return [plot for plot in plots if plot["frames"] > 1]


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


def _examples(demo: Demo, which: Callable[[DemoDomain], Indices]) -> list[dict[str, Any]]:
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
                for name, run in zip(("Without", "NEO", "NEO-Stream"), domain.results.values(), strict=True)
            },
        }
        for _, domain, index in ranked[:EXAMPLES]
    ]


# ---- the terminal

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

    def add(name: str, accuracy: Callable[[str], float], verdict: int = 0) -> None:
        without, neo, stream = map(accuracy, METHODS)
        gain = Text(f"{100 * (stream - without):+.1f}{'*' if verdict else ' '}", style=VERDICTS[verdict])
        shares = (f"{100 * share:.1f}" for share in (without, neo, stream))
        table.add_row(name, *shares, gain, bar(without, stream, width, ascii_only))

    for domain in demo.domains:
        add(title(domain.name), domain.accuracy, domain.verdict)
    table.add_section()
    name = f"Mean of {len(demo.corrupted)}"
    add(name, demo.mean, demo.verdict)
    table.add_section()
    add("Clean, one digit", lambda method: share(demo.clean.cameras, method))
    add(f"{name}, one digit", lambda method: share(demo.cameras, method))
    return table


def legend(console: Console) -> Text:
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

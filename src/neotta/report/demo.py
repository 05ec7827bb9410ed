"""The demonstration: a real shift, a camera that sees one class, and 15 corruptions; plain, with NEO and NEO-Stream.

The digits are seen twice in every domain: mixed, and by ten cameras that each see one digit only. The rules predict and
adapt batch by batch, and are reset before each domain and each camera.
"""

from __future__ import annotations

import functools
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
from neotta.data.drawing import Indices
from neotta.data.order import reorder
from neotta.data.orders import iid, stored
from neotta.errors import OptionError
from neotta.evaluate.bench import Bench
from neotta.evaluate.domains import CLEAN
from neotta.evaluate.execute import go_through
from neotta.evaluate.plan import Plan
from neotta.evaluate.predictions import RunResult
from neotta.models.packaged import BUNDLED, read_package
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
WHICH = 'Classes mixed? Take NEO: neotta.adapt(model, "neo"). A camera? Take NEO-Stream: neotta.adapt(model).'
"""Which rule to take when."""

Cameras = Mapping[str, tuple[NDArray[np.bool_], ...]]
"""By method, whether each answer of each camera is right: (frames,) for every camera."""


@dataclass(frozen=True)
class DemoDomain:
    """Images of one kind (clean, a corruption or real): answers by method, mixed and by camera."""

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

    def fixed(self, method: str) -> Indices:
        """The rows that a method gets right and the plain model gets wrong."""
        return np.flatnonzero(~self.right("none") & self.right(method))

    def broken(self, method: str) -> Indices:
        """The rows that the plain model gets right and a method gets wrong."""
        return np.flatnonzero(self.right("none") & ~self.right(method))

    def verdict(self, method: str) -> int:
        """1 where a method is better than the plain model, -1 where it is worse, 0 where it may be chance."""
        return _verdict(len(self.fixed(method)), len(self.broken(method)))


@dataclass(frozen=True)
class Demo:
    """All that was measured: a real shift, then clean images and the corruptions, these with the same images in order.

    `source_accuracy` is that of the model of MNIST on its own test images, `parameters` the size of the other model,
    `state` that of what NEO keeps beside it.
    """

    real: DemoDomain
    source_accuracy: float
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

    def verdict(self, method: str) -> int:
        """As for one domain, for the mean: each image counts once, with what is won on it over all corruptions."""
        won = np.zeros(len(self.clean.labels), dtype=np.int64)
        for domain in self.corrupted:
            won[domain.fixed(method)] += 1
            won[domain.broken(method)] -= 1
        return _verdict(int((won > 0).sum()), int((won < 0).sum()))


def run(samples: int | None = None, on_domain: Callable[[str, int, int], None] | None = None) -> Demo:
    """Measure the bundled models on the real shift, clean images and 15 corruptions; `samples` of each, or all."""
    bench = Bench(Plan(corruptions=["all"]), workers=0)
    other = Bench(Plan(model="mnist", data="digits-all"), workers=0)
    names = bench.data.names([CLEAN, *CORRUPTIONS], [SEVERITY])
    available = len(bench.data.dataset(CLEAN))
    if samples is not None and not 1 <= samples <= available:
        raise OptionError(f"samples is {samples}: there are 1 to {available} test images")
    drawn = iid({"all": len(other.data.dataset("all"))}, samples=samples or -1, seed=0).index  # as `neotta run` does
    index = np.random.default_rng(0).permutation(available)[:samples]
    domains = []
    for done, (each, name, rows) in enumerate([(other, "all", drawn), *((bench, name, index) for name in names)]):
        kind = "real" if each is other else name.partition("/")[0]
        if on_domain is not None:
            on_domain("a real shift" if kind == "real" else kind, done, 1 + len(names))
        domains.append(_measure(each, kind, name, rows))
    accuracy = read_package(BUNDLED["mnist"]).accuracy or float("nan")
    parameters = sum(parameter.numel() for parameter in bench.model.parameters())
    return Demo(domains[0], accuracy, tuple(domains[1:]), parameters, bench.head.in_features)


def _measure(bench: Bench, kind: str, name: str, index: Indices) -> DemoDomain:
    dataset = bench.data.dataset(name)

    def predict(method: str, places: Indices, size: int) -> RunResult:
        order = reorder(stored({name: dataset}, batch_size=size), places)
        return go_through(bench, (order,), create(method, bench.model), from_cache=True)

    results = {method: predict(method, index, BATCH_SIZE) for method in METHODS}
    labels = results["none"].stats.labels.numpy()
    streams = [index[labels == label] for label in np.unique(labels)]
    cameras = {method: tuple(_right(predict(method, stream, FRAMES)) for stream in streams) for method in METHODS}
    return DemoDomain(kind, results, cameras, lambda row: dataset.read(int(index[row])))


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


def headline(demo: Demo) -> str:
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
    plain, neo, stream = (f"{100 * share(demo.clean.cameras, method):.1f} %" for method in METHODS)
    return (
        f"A camera that sees only one digit, clean images: the plain model is right on {plain} of the frames, NEO on "
        f"{neo}, NEO-Stream on {stream}."
    )


# ---- the page


def demo_page(demo: Demo, seconds: float) -> str:
    return render(
        "demo.html",
        demo=demo,
        headline=headline(demo),
        rows=[(title(domain.name), domain) for domain in demo.domains],
        summary=summary(demo),
        one_digit=one_digit(demo),
        which=WHICH,
        one_digit_share={method: share(demo.clean.cameras, method) for method in METHODS},
        plots=_plots(demo),
        samples=len(demo.clean.labels),
        side=len(demo.clean.image(0)),
        severity=SEVERITY,
        batch_size=BATCH_SIZE,
        level=LEVEL,
        window=FRAMES,
        strips=_strips(demo),
        fixed=_examples(demo.real, demo.real.fixed("neo")),
        broken=_examples(demo.real, demo.real.broken("neo")),
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


def _examples(domain: DemoDomain, rows: Indices) -> list[dict[str, Any]]:
    return [
        {
            "image": data_uri(domain.image(int(row))),
            "truth": int(domain.labels[row]),
            "plain": int(domain.results["none"].stats.predicted[row]),
            "neo": int(domain.results["neo"].stats.predicted[row]),
        }
        for row in rows[:EXAMPLES]
    ]


# ---- the terminal

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

    def add(name: str, accuracy: Callable[[str], float], verdict: Callable[[str], int], drawn: str) -> None:
        cells = [Text(f"{100 * accuracy('none'):.1f}")]
        for method in ("neo", "neo-stream"):
            beyond = verdict(method)
            cells.append(Text(f"{100 * accuracy(method):.1f}{'*' if beyond else ' '}", style=VERDICTS[beyond]))
        table.add_row(name, *cells, bar(accuracy("none"), accuracy(drawn), width, ascii_only))

    add("A real shift", demo.real.accuracy, demo.real.verdict, "neo")
    table.add_section()
    for domain in demo.domains:
        add(title(domain.name), domain.accuracy, domain.verdict, "neo")
    mean = f"Mean of {len(demo.corrupted)}"
    add(mean, demo.mean, demo.verdict, "neo")
    table.add_section()
    table.add_row(Text("One digit at a time", style="bold"))
    for name, cameras in (("Clean", demo.clean.cameras), (mean, demo.cameras)):
        add(name, functools.partial(share, cameras), lambda method: 0, "neo-stream")
    return table


def legend(console: Console) -> Text:
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

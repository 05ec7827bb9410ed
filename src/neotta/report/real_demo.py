"""The demonstration of a real shift: a model trained on MNIST meets digits of other writers and another scanner."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from neotta.adapters.registry import find, methods
from neotta.data.base import Image
from neotta.data.drawing import take
from neotta.evaluate.bench import Bench
from neotta.evaluate.compare import compare, difference_in
from neotta.evaluate.execute import execute
from neotta.evaluate.frame import frame
from neotta.evaluate.metrics import CANNOT_TELL, Interval, verdict
from neotta.evaluate.plan import Plan
from neotta.evaluate.sweep import suited
from neotta.models.packaged import BUNDLED, read_package
from neotta.report.demo import bar
from neotta.report.html import data_uri, render

MODEL, DATA, DOMAIN = "mnist", "digits-all", "all"
BATCH_SIZE, SEED = 64, 0
_STYLES = {"helps": "bold cyan", "hurts": "bold red"}


class MethodResult(NamedTuple):
    """The accuracy of a method in percent, and its difference to the model as it is; None for that itself."""

    name: str
    title: str
    accuracy: float
    difference: Interval | None

    @property
    def verdict(self) -> str:
        """`helps`, `hurts` or `can't tell`; empty for the model as it is."""
        return "" if self.difference is None else verdict(self.difference)

    @property
    def gain(self) -> str:
        """`+3.1 [+2.0, +4.2]`; empty for the model as it is."""
        return "" if self.difference is None else self.difference.text(1, "+")


@dataclass(frozen=True)
class RealDemo:
    """All that was measured: the model as it is, then the methods, the best first; and one image of each class.

    `source_accuracy` is that on test images of the data that the model was trained on, in percent.
    """

    results: tuple[MethodResult, ...]
    left_out: dict[str, str]
    source_accuracy: float
    samples: int
    images: tuple[Image, ...]

    @property
    def plain(self) -> MethodResult:
        return self.results[0]

    def count(self, verdict: str) -> int:
        return sum(result.verdict == verdict for result in self.results[1:])

    def measured(self) -> str:
        return (
            f"A small vision transformer, trained on MNIST, named {self.samples:,} handwritten digits of another "
            "collection: other writers, another scanner, 8 x 8 instead of 28 x 28 pixels. Nobody made up this shift. "
            "Every method saw the same images once, 64 at a time, without their labels, with its default options."
        )

    def summary(self) -> str:
        best = self.results[1]
        return (
            f"On digits of MNIST the model is right in {self.source_accuracy:.1f} % of the cases, on these in "
            f"{self.plain.accuracy:.1f} %. Of {len(self.results) - 1} methods {self.count('helps')} help and "
            f"{self.count('hurts')} hurt, and for {self.count(CANNOT_TELL)} the difference may be chance; the best is "
            f"{best.title} with {best.accuracy:.1f} %."
        )


def run(samples: int | None = None, on_method: Callable[[str, int, int], None] | None = None) -> RealDemo:
    """Let every method that applies go through the digits once; `samples` of the 1,797 images, or all."""
    bench = Bench(Plan(model=MODEL, data=DATA), workers=0)
    dataset = bench.data.dataset(DOMAIN)
    count = take(len(dataset), -1 if samples is None else samples, "images")
    names = [name for name in methods() if name != "bn"]
    wanted = {"model": MODEL, "data": DATA, "methods": names, "samples": [count], "batch_sizes": [BATCH_SIZE]}
    plan, left_out = suited(bench, Plan.make({**wanted, "seeds": [SEED]}))
    left_out["bn"] = "the model has no BatchNorm layers"
    runs, records = bench.runs(plan), []
    for done, each in enumerate(runs):
        if on_method is not None:
            on_method(find(each.method).title, done, len(runs))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what a method has to say of this model
            records.append(execute(bench, each)[0])
    left_out |= {record.method: record.error or "" for record in records if record.failed}
    measured = [record for record in records if not record.failed]
    results = [
        MethodResult(row.name, find(row.name).title, row.mean, difference_in(row) if row.pairs else None)
        for row in compare(frame(measured)).itertuples()
    ]
    ranked = sorted(results, key=lambda result: (result.name != "none", -result.accuracy))
    first = np.unique(np.zeros(1) if dataset.labels is None else dataset.labels, return_index=True)[1]
    images = tuple(dataset.read(int(index)) for index in first)
    accuracy = read_package(BUNDLED[MODEL]).accuracy or float("nan")
    return RealDemo(tuple(ranked), left_out, 100 * accuracy, count, images)


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
        words = (result.title, f"{result.accuracy:.1f}", result.gain, result.verdict)
        table.add_row(*words, drawn, style=_STYLES.get(result.verdict, ""))
    return table


def real_demo_page(demo: RealDemo, seconds: float) -> str:
    strip = data_uri(np.concatenate(demo.images, axis=1))
    return render("real_demo.html", demo=demo, seed=SEED, strip=strip, seconds=seconds)

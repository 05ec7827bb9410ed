"""The demonstration of a real shift: a model trained on MNIST meets digits of other writers and another scanner."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from neotta.adapters.registry import find, methods
from neotta.data.base import Image
from neotta.data.drawing import take
from neotta.errors import OptionError
from neotta.evaluate.comparison import compare
from neotta.evaluate.metrics import CANNOT_TELL
from neotta.evaluate.plan import Plan
from neotta.evaluate.records import Record
from neotta.evaluate.session import Session
from neotta.evaluate.sweep import suited
from neotta.evaluate.verdicts import Difference
from neotta.models.packaged import BUNDLED, read_package

MODEL, DATA, DOMAIN = "mnist", "digits-all", "all"
BATCH_SIZE = 64


class MethodResult(NamedTuple):
    """What a method makes of the shift.

    Attributes:
        name: Name of the method, as `neotta run` takes it.
        title: Name of the method in publications.
        accuracy: In percent.
        difference: To the model as it is, image by image; None for that itself.
    """

    name: str
    title: str
    accuracy: float
    difference: Difference | None

    @property
    def verdict(self) -> str:
        """`helps`, `hurts` or `can't tell`; empty for the model as it is."""
        return "" if self.difference is None else self.difference.verdict


@dataclass(frozen=True)
class RealDemo:
    """All that was measured.

    Attributes:
        results: The model as it is, then the methods, the best first.
        left_out: Why methods could not run, by name.
        source_accuracy: Accuracy on test images of the data that the model was trained on, in percent.
        samples: Number of images.
        seed: Seed of their order, and of methods that draw random numbers.
        images: One image of each class as the model sees it.
    """

    results: tuple[MethodResult, ...]
    left_out: dict[str, str]
    source_accuracy: float
    samples: int
    seed: int
    images: tuple[Image, ...]

    @property
    def plain(self) -> MethodResult:
        """The model as it is."""
        return self.results[0]

    def count(self, verdict: str) -> int:
        """Number of methods with a verdict."""
        return sum(result.verdict == verdict for result in self.results[1:])

    def summary(self) -> str:
        """What was found, in two sentences."""
        best, plain = self.results[1], self.plain
        unclear = self.count(CANNOT_TELL)
        return (
            f"On digits of MNIST the model is right in {self.source_accuracy:.1f} % of the cases, on these in "
            f"{plain.accuracy:.1f} %. Of {len(self.results) - 1} methods {self.count('helps')} help and "
            f"{self.count('hurts')} hurt, and for {unclear} the difference may be chance; the best is {best.title} "
            f"with {best.accuracy:.1f} %."
        )


def run(
    seed: int = 0, samples: int | None = None, on_method: Callable[[str, int, int], None] | None = None
) -> RealDemo:
    """Let every method that applies go through the digits once."""
    if seed < 0:
        raise OptionError(f"seed is {seed}: it is a whole number from 0 on")
    bench = Session(MODEL, DATA, workers=0)
    dataset = bench.data.dataset(DOMAIN)
    count = take(len(dataset), -1 if samples is None else samples, "images")
    names = _names(bench)
    wanted = {"model": MODEL, "data": DATA, "methods": names, "samples": [count], "batch_sizes": [BATCH_SIZE]}
    plan, left_out = suited(bench, Plan.make({**wanted, "seeds": [seed]}))
    left_out |= {name: "the model has no BatchNorm layers" for name in methods() if name not in names}
    runs = bench.runs(plan)
    records = []
    for done, each in enumerate(runs):
        if on_method is not None:
            on_method(find(each.method).title, done, len(runs))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what a method has to say of this model
            records.append(bench.execute(each)[0])
    left_out |= {record.method: record.error or "" for record in records if record.failed}
    accuracy = read_package(BUNDLED[MODEL]).accuracy or float("nan")
    shown = tuple(dataset.read(int(index)) for index in _one_of_each(dataset.labels))
    return RealDemo(_ranked(records), left_out, 100 * accuracy, count, seed, shown)


def _names(bench: Session) -> list[str]:
    normalised = any("BatchNorm" in type(module).__name__ for module in bench.model.modules())
    return [name for name in methods() if normalised or name != "bn"]


def _one_of_each(labels: NDArray[np.int64] | None) -> NDArray[np.int64]:
    first: NDArray[np.int64] = np.unique(np.zeros(1) if labels is None else labels, return_index=True)[1]
    return first


def _ranked(records: list[Record]) -> tuple[MethodResult, ...]:
    (block,) = compare([record for record in records if not record.failed]).blocks
    results = [
        MethodResult(
            label,
            find(label).title,
            block.cells[DOMAIN, label].interval.mean,
            block.differences.get((DOMAIN, label)),
        )
        for label in block.methods
    ]
    return tuple(sorted(results, key=lambda result: (result.name != "none", -result.accuracy)))

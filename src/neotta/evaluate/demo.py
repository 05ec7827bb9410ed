"""The demonstration: a real shift, a camera that sees one class, and 15 corruptions; plain, with NEO and NEO-Stream."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from neotta.adapters.registry import create
from neotta.data.base import Image, ImageDataset
from neotta.data.corruptions import CORRUPTIONS
from neotta.data.order import Order
from neotta.data.orders import iid
from neotta.errors import OptionError
from neotta.evaluate.domains import CLEAN
from neotta.evaluate.predictions import RunResult
from neotta.evaluate.session import Session
from neotta.models.packaged import BUNDLED, read_package

FRAMES = 8
"""Number of frames that a camera's model sees at a time, and over which accuracy is averaged in the plot."""


@dataclass(frozen=True)
class Cameras:
    """Cameras that each see one class only, all of them with a state of their own.

    Attributes:
        right: By method, whether each answer of each camera is right: (frames,) for every camera.
    """

    right: Mapping[str, tuple[NDArray[np.bool_], ...]]

    @classmethod
    def together(cls, parts: Iterable[Cameras]) -> Cameras:
        """All cameras of several groups, measured with the same methods."""
        groups = [part.right for part in parts]
        return cls({method: tuple(camera for group in groups for camera in group[method]) for method in groups[0]})

    @property
    def count(self) -> int:
        """Number of cameras."""
        return len(next(iter(self.right.values())))

    @property
    def frames(self) -> int:
        """Number of frames that every camera has."""
        return min(len(camera) for camera in next(iter(self.right.values())))

    def accuracy(self, method: str) -> float:
        """Share of right answers over all frames."""
        return float(np.concatenate(self.right[method]).mean())

    def curve(self, method: str) -> NDArray[np.float64]:
        """Share of right answers among the last frames of all cameras, (frames,)."""
        each = np.mean([camera[: self.frames] for camera in self.right[method]], axis=0)
        sums = np.concatenate([[0.0], np.cumsum(each)])
        last = np.arange(1, len(sums))
        first = np.maximum(last - FRAMES, 0)
        return np.asarray((sums[last] - sums[first]) / (last - first))


def measure(
    index: NDArray[np.int64],
    labels: NDArray[np.int64],
    methods: Iterable[str],
    predict: Callable[[str, NDArray[np.int64], int], RunResult],
) -> Cameras:
    """Let each method see the images of one class after the other, and restart for each class.

    Args:
        index: Which images are used, and in which order.
        labels: The true class of each image.
        methods: Names of the methods.
        predict: Returns the predictions of a method for images in batches of a size.
    """
    streams = [index[labels == label] for label in np.unique(labels)]
    return Cameras({method: tuple(_right(predict(method, stream, FRAMES)) for stream in streams) for method in methods})


def _right(result: RunResult) -> NDArray[np.bool_]:
    return np.asarray((result.stats.predicted == result.stats.labels).numpy())


SEVERITY = 5
"""The default: the level at which methods are usually compared, and where this model is hurt but still works."""

BATCH_SIZE = 64
LEVEL = 0.05
"""The significance level of a difference."""


METHODS = ("none", "neo", "neo-stream")


@dataclass(frozen=True)
class DemoDomain:
    """One kind of images, predicted by the plain model and by each rule.

    Attributes:
        name: `"clean"`, the name of the corruption, or `"real"`.
        runs: The predictions by method, on the same images in the same order.
        cameras: The same images, as cameras show them that each see one digit only.
        image: Returns the image of a row, (32, 32, 3) uint8, as the model saw it.
    """

    name: str
    runs: Mapping[str, RunResult]
    cameras: Cameras
    image: Callable[[int], Image]

    @property
    def labels(self) -> NDArray[np.int64]:
        """The true classes, (N,)."""
        classes: NDArray[np.int64] = self.runs["none"].stats.labels.numpy()
        return classes

    def accuracy(self, method: str) -> float:
        """Share of correct predictions."""
        return float(_right(self.runs[method]).mean())

    def fixed(self, method: str) -> NDArray[np.int64]:
        """The rows that a method gets right and the plain model gets wrong."""
        return np.flatnonzero(~_right(self.runs["none"]) & _right(self.runs[method]))

    def broken(self, method: str) -> NDArray[np.int64]:
        """The rows that the plain model gets right and a method gets wrong."""
        return np.flatnonzero(_right(self.runs["none"]) & ~_right(self.runs[method]))

    def verdict(self, method: str) -> int:
        """1 where a method is better than the plain model, -1 where it is worse, 0 where it may be chance."""
        return verdict(len(self.fixed(method)), len(self.broken(method)))


@dataclass(frozen=True)
class Demo:
    """All that was measured.

    Attributes:
        real: A real shift: the digits of other people, read by a model of MNIST.
        source_accuracy: Accuracy of that model on test images of MNIST.
        domains: The clean images first, then the corruptions; all with the same images in the same order.
        severity: Severity of the corruptions, 1 to 5.
        seed: Seed of the order of the images and of the corruptions.
        batch_size: Number of images that the model saw at a time.
        parameters: The size of the model.
        state: The size of NEO's state: the count of numbers it keeps beside the model.
    """

    real: DemoDomain
    source_accuracy: float
    domains: tuple[DemoDomain, ...]
    severity: int
    seed: int
    batch_size: int
    parameters: int
    state: int

    @property
    def clean(self) -> DemoDomain:
        """The domain without corruption."""
        return self.domains[0]

    @property
    def corrupted(self) -> tuple[DemoDomain, ...]:
        """The domains that the means are taken over."""
        return self.domains[1:]

    def mean(self, method: str) -> float:
        """Mean accuracy over the corruptions."""
        return float(np.mean([domain.accuracy(method) for domain in self.corrupted]))

    @property
    def cameras(self) -> Cameras:
        """The cameras of all corruptions."""
        return Cameras.together(domain.cameras for domain in self.corrupted)

    def verdict(self, method: str) -> int:
        """As for one domain, for the mean: each image counts once, with what is won on it over all corruptions."""
        won = np.zeros(len(self.clean.labels), dtype=np.int64)
        for domain in self.corrupted:
            won[domain.fixed(method)] += 1
            won[domain.broken(method)] -= 1
        return verdict(int((won > 0).sum()), int((won < 0).sum()))


def run(
    severity: int = SEVERITY,
    seed: int = 0,
    samples: int | None = None,
    on_domain: Callable[[str, int, int], None] | None = None,
) -> Demo:
    """Measure the bundled models plain, with NEO and with NEO-Stream: a real shift, clean images and 15 corruptions.

    Every domain is seen twice, in batches: the digits mixed, and by ten cameras that each see one digit only. The rules
    predict and adapt batch by batch, and are reset before each domain and each camera.

    Args:
        severity: 1 (slight) to 5 (strong).
        seed: Seed of the order of the images and of the corruptions.
        samples: How many images of each domain to use; by default all 600 test images, and 1,797 of the real shift.
        on_domain: Called before each domain with its name, the number of domains done, and their total.
    """
    if seed < 0:
        raise OptionError(f"seed is {seed}: it is a whole number from 0 on")
    bench = Session("digits", "digits", corrupted=True, corruption_seed=seed, workers=0)
    other = Session("mnist", "digits-all", workers=0)
    names = bench.data.names([CLEAN, *CORRUPTIONS], [severity])
    available = len(bench.data.dataset(CLEAN))
    if samples is not None and not 1 <= samples <= available:
        raise OptionError(f"samples is {samples}: there are 1 to {available} test images")
    drawn = iid({"all": len(other.data.dataset("all"))}, samples=samples or -1, seed=seed).index  # as `neotta run` does
    index = np.random.default_rng(seed).permutation(available)[:samples]
    places = [(other, "all", drawn), *((bench, name, index) for name in names)]
    domains = []
    for done, (session, name, rows) in enumerate(places):
        kind = "real" if session is other else name.partition("/")[0]
        if on_domain is not None:
            on_domain("a real shift" if kind == "real" else kind, done, len(places))
        domains.append(_measure(session, kind, name, rows, seed))
    return Demo(
        real=domains[0],
        source_accuracy=read_package(BUNDLED["mnist"]).accuracy or float("nan"),
        domains=tuple(domains[1:]),
        severity=severity,
        seed=seed,
        batch_size=BATCH_SIZE,
        parameters=sum(parameter.numel() for parameter in bench.model.parameters()),
        state=bench.head.in_features,
    )


def _measure(bench: Session, kind: str, name: str, index: NDArray[np.int64], seed: int) -> DemoDomain:
    dataset = bench.data.dataset(name)

    def predict(method: str, places: NDArray[np.int64], batch_size: int) -> RunResult:
        order = Order(
            kind="list",
            seed=seed,
            domains=(name,),
            domain=np.zeros(len(places), dtype=np.int64),
            index=places,
            ids=tuple(dataset.ids[place] for place in places),
            batch_size=batch_size,
        )
        return bench.runner.predict((order,), create(method, bench.model), from_cache=True)

    runs = {method: predict(method, index, BATCH_SIZE) for method in METHODS}
    cameras = measure(index, runs["none"].stats.labels.numpy(), METHODS, predict)
    return DemoDomain(kind, runs, cameras, functools.partial(_read, dataset, index))


def _read(dataset: ImageDataset, index: NDArray[np.int64], row: int) -> Image:
    return dataset.read(int(index[row]))


def verdict(won: int, lost: int) -> int:
    """1 or -1 if one side has won more often than chance explains, else 0."""
    return int(np.sign(won - lost)) if sign_test(won, lost) < LEVEL else 0


def sign_test(won: int, lost: int) -> float:
    """How often a fair coin splits `won + lost` throws at least as unevenly (exact, two-sided)."""
    throws = won + lost
    tail = sum(math.comb(throws, k) for k in range(min(won, lost) + 1))
    return min(1.0, 2 * tail / (1 << throws))

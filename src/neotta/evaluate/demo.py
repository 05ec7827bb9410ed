"""The demonstration: what corrupted images do to the bundled model, and what NEO-Stream and NEO win back."""

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
from neotta.errors import OptionError
from neotta.evaluate.domains import CLEAN
from neotta.evaluate.predictions import RunResult
from neotta.evaluate.session import Session

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
    """Let each method see the images of one class after the other, and restart for each class."""
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
    """One kind of images, predicted by the model as it is, with NEO and with NEO-Stream.

    Attributes:
        name: `"clean"` or the name of the corruption.
        without: The predictions of the model as it is.
        neo: The predictions of the same model with NEO, adapting as it goes.
        stream: The predictions of the same model with NEO-Stream, adapting as it goes.
        cameras: The same images, as cameras show them that each see one digit only.
        image: Returns the image of a row, (32, 32, 3) uint8, as the model saw it.
    """

    name: str
    without: RunResult
    neo: RunResult
    stream: RunResult
    cameras: Cameras
    image: Callable[[int], Image]

    @property
    def labels(self) -> NDArray[np.int64]:
        """The true classes, (N,)."""
        classes: NDArray[np.int64] = self.without.stats.labels.numpy()
        return classes

    @property
    def accuracy_without(self) -> float:
        """Share of correct predictions of the model as it is."""
        return float(self._correct(self.without).mean())

    @property
    def accuracy_neo(self) -> float:
        """Share of correct predictions with NEO."""
        return float(self._correct(self.neo).mean())

    @property
    def accuracy_stream(self) -> float:
        """Share of correct predictions with NEO-Stream."""
        return float(self._correct(self.stream).mean())

    @property
    def fixed(self) -> NDArray[np.int64]:
        """The rows that NEO-Stream gets right and the model as it is gets wrong."""
        return np.flatnonzero(~self._correct(self.without) & self._correct(self.stream))

    @property
    def broken(self) -> NDArray[np.int64]:
        """The rows that the model as it is gets right and NEO-Stream gets wrong."""
        return np.flatnonzero(self._correct(self.without) & ~self._correct(self.stream))

    @property
    def verdict(self) -> int:
        """1 where NEO-Stream is better, -1 where it is worse, 0 where the difference may be chance."""
        return verdict(len(self.fixed), len(self.broken))

    def _correct(self, result: RunResult) -> NDArray[np.bool_]:
        correct: NDArray[np.bool_] = result.stats.predicted.numpy() == self.labels
        return correct


@dataclass(frozen=True)
class Demo:
    """All that was measured.

    Attributes:
        domains: The clean images first, then the corruptions; all with the same images in the same order.
        severity: Severity of the corruptions, 1 to 5.
        seed: Seed of the order of the images and of the corruptions.
        batch_size: Number of images that the model saw at a time.
        parameters: The size of the model.
        state: The size of NEO's state: the count of numbers it keeps beside the model.
    """

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

    @property
    def mean_without(self) -> float:
        """Mean accuracy over the corruptions of the model as it is."""
        return float(np.mean([domain.accuracy_without for domain in self.corrupted]))

    @property
    def mean_neo(self) -> float:
        """Mean accuracy over the corruptions with NEO."""
        return float(np.mean([domain.accuracy_neo for domain in self.corrupted]))

    @property
    def mean_stream(self) -> float:
        """Mean accuracy over the corruptions with NEO-Stream."""
        return float(np.mean([domain.accuracy_stream for domain in self.corrupted]))

    @property
    def cameras(self) -> Cameras:
        """The cameras of all corruptions."""
        return Cameras.together(domain.cameras for domain in self.corrupted)

    @property
    def verdict(self) -> int:
        """As for one domain, for the mean: each image counts once, with what is won on it over all corruptions."""
        won = np.zeros(len(self.clean.labels), dtype=np.int64)
        for domain in self.corrupted:
            won[domain.fixed] += 1
            won[domain.broken] -= 1
        return verdict(int((won > 0).sum()), int((won < 0).sum()))


def run(
    severity: int = SEVERITY,
    seed: int = 0,
    samples: int | None = None,
    on_domain: Callable[[str, int, int], None] | None = None,
) -> Demo:
    """Measure the bundled model as it is, with NEO and with NEO-Stream, on clean images and on each of 15 corruptions.

    Every domain is seen twice, in batches: the digits mixed, and by ten cameras that each see one digit only. The rules
    predict and adapt batch by batch, and are reset before each domain and each camera.
    """
    if seed < 0:
        raise OptionError(f"seed is {seed}: it is a whole number from 0 on")
    bench = Session("digits", "digits", corrupted=True, corruption_seed=seed, workers=0)
    names = bench.data.names([CLEAN, *CORRUPTIONS], [severity])
    available = len(bench.data.dataset(CLEAN))
    if samples is not None and not 1 <= samples <= available:
        raise OptionError(f"samples is {samples}: there are 1 to {available} test images")
    index = np.random.default_rng(seed).permutation(available)[:samples]
    domains = []
    for done, name in enumerate(names):
        kind = name.partition("/")[0]
        if on_domain is not None:
            on_domain(kind, done, len(names))
        domains.append(_measure(bench, kind, name, index, seed))
    return Demo(
        domains=tuple(domains),
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

    without, neo, stream = (predict(method, index, BATCH_SIZE) for method in METHODS)
    cameras = measure(index, without.stats.labels.numpy(), METHODS, predict)
    return DemoDomain(kind, without, neo, stream, cameras, functools.partial(_read, dataset, index))


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

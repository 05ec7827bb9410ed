"""Cameras that see one class for long: the part of the demonstration where NEO's assumption of mixed classes fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from neotta.evaluate.predictions import RunResult

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
        labels: The true class of each of them.
        methods: Names of the methods.
        predict: Returns the predictions of a method for images in batches of a size.
    """
    streams = [index[labels == label] for label in np.unique(labels)]
    return Cameras({method: tuple(_right(predict(method, stream, FRAMES)) for stream in streams) for method in methods})


def _right(result: RunResult) -> NDArray[np.bool_]:
    return np.asarray((result.stats.predicted == result.stats.labels).numpy())

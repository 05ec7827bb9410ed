"""What every dataset is: the images of one domain in a fixed order, with stable ids."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Image = NDArray[np.uint8]
"""An RGB image, (H, W, 3) uint8."""


class ImageDataset(ABC):
    """The images of one domain.

    Attributes:
        domain: Where the images come from, such as `"imagenet-c/fog/5"`.
        ids: One name per sample, unique within the domain and the same on every machine.
        labels: Class index of each sample, (N,) int64, or None if unlabelled.
        classes: The names of the classes in the order of their indices (WordNet ids for ImageNet's), or None.
        in_memory: Whether reading a sample is so cheap that worker processes do not pay off.
    """

    domain: str
    ids: Sequence[str]
    labels: NDArray[np.int64] | None = None
    classes: tuple[str, ...] | None = None
    in_memory: bool = False

    def __len__(self) -> int:
        return len(self.ids)

    @abstractmethod
    def read(self, index: int) -> Image:
        """Decode one sample.

        Returns:
            The image, (H, W, 3) uint8 RGB, upright.

        Raises:
            DataError: The file is truncated, not an image, or too large.
        """

    def digest(self, index: int) -> str:
        """A hash of the sample itself: the same on every machine, another for another picture."""
        image = self.read(index)
        return hashlib.sha256(f"{image.shape}".encode() + image.tobytes()).hexdigest()[:16]

    def stamp(self, index: int) -> str:
        """Something cheap that changes when the sample does on this machine, such as a file's size and time."""
        return self.digest(index)


class DatasetView(ImageDataset):
    """The samples of another dataset, seen in another way; what a subclass does not change is passed through."""

    def __init__(self, dataset: ImageDataset, domain: str) -> None:
        self.dataset, self.domain = dataset, domain
        self.ids, self.labels, self.classes = dataset.ids, dataset.labels, dataset.classes
        self.in_memory = dataset.in_memory

    def read(self, index: int) -> Image:
        """Decode one sample, (H, W, 3) uint8 RGB."""
        return self.dataset.read(index)

    def digest(self, index: int) -> str:
        """The hash of the sample in the other dataset, and how it is seen."""
        return self.dataset.digest(index) + self._view()

    def stamp(self, index: int) -> str:
        """The stamp of the sample in the other dataset, and how it is seen."""
        return self.dataset.stamp(index) + self._view()

    def _view(self) -> str:
        return ""

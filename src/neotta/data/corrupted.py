"""Datasets seen through a corruption, or in the size that a set of corruptions was published for."""

from __future__ import annotations

import functools
import os

import numpy as np
from PIL import Image as Pillow

from neotta.data._numbers import checked_seed
from neotta.data.base import DatasetView, Image, ImageDataset
from neotta.data.corruptions import registry
from neotta.data.corruptions.frost import Textures

SIDE = {"imagenet": 224, "tiny": 64, "cifar": 32}
"""The side of the square pictures each preset was published for."""


class CorruptedDataset(DatasetView):
    """The images of another dataset, each corrupted when it is read.

    Every image draws its own noise, from the seed and its id: the same in every process and in any order.

    Args:
        dataset: Where the clean images come from; ids, labels and classes are passed through.
        name: A corruption, as `corrupt` takes it.
        severity: 1 to 5.
        preset: "imagenet", "tiny" or "cifar": the set that was made for images of about the same size.
        seed: Another seed gives other noise.
        textures: A folder of frost pictures; by default they are generated.
    """

    def __init__(
        self,
        dataset: ImageDataset,
        name: str,
        severity: int = 3,
        preset: str = "imagenet",
        seed: int = 0,
        *,
        textures: str | os.PathLike[str] | None = None,
    ) -> None:
        registry.check_choice(name, severity, preset)
        super().__init__(dataset, f"{dataset.domain}/{registry.label(name)}/{severity}")
        self.name, self.severity = name, severity
        self.preset, self.seed, self.textures = preset, checked_seed(seed), textures
        self.in_memory = False  # corrupting takes time: it is worth worker processes

    def read(self, index: int) -> Image:
        """Read one image and corrupt it."""
        return registry.corrupt(
            self.dataset.read(index),
            self.name,
            self.severity,
            self.preset,
            self.seed,
            image_id=self.ids[index],
            textures=self.textures,
        )

    def _view(self) -> str:
        return f"-{self.name}-{self.severity}-{self.preset}-{self.seed}-{self._material}"

    @functools.cached_property
    def _material(self) -> str:
        """What else the pictures depend on: the pictures of frost in a folder, or the code of an added corruption."""
        if self.textures is None or self.name != "frost":
            return registry.version(self.name)
        return Textures.of_folder(self.textures).digest()[:16]


class PreparedDataset(DatasetView):
    """The images of another dataset, larger ones cut and shrunk as the authors of ImageNet-C did.

    Args:
        dataset: Where the images come from; everything else is passed through.
        preset: "imagenet", "tiny" or "cifar". Images of its size, or smaller, stay as they are.
    """

    def __init__(self, dataset: ImageDataset, preset: str) -> None:
        super().__init__(dataset, f"{dataset.domain}@{preset}")  # other images: a cache keeps them apart
        self.preset = preset

    def read(self, index: int) -> Image:
        """Read one image and resize it."""
        image = self.dataset.read(index)
        return prepare(image, self.preset) if min(image.shape[:2]) > SIDE[self.preset] else image

    def _view(self) -> str:
        return f"-{self.preset}"


def prepare(image: Image, preset: str) -> Image:
    """Resize a picture to what its preset was published for.

    "imagenet": the shorter side becomes 256 pixels, and the middle 224 x 224 are cut out. The others squeeze the whole
    picture into their square.
    """
    side = SIDE[preset]
    picture, bilinear = Pillow.fromarray(image), Pillow.Resampling.BILINEAR
    if preset != "imagenet":
        return np.asarray(picture.resize((side, side), bilinear))
    shorter = min(picture.size)
    width, height = (256 * length // shorter for length in picture.size)
    left, top = round((width - side) / 2), round((height - side) / 2)
    return np.asarray(picture.resize((width, height), bilinear).crop((left, top, left + side, top + side)))

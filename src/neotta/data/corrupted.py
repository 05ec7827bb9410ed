"""A dataset seen through a corruption."""

from __future__ import annotations

import functools
import os

from neotta.data._numbers import checked_seed
from neotta.data.base import Image, ImageDataset
from neotta.data.corruptions.registry import check_choice, corrupt
from neotta.data.corruptions.textures import Textures


class CorruptedDataset(ImageDataset):
    """The images of another dataset, each corrupted when it is read.

    Every image draws its own noise, from the seed and its id: the same in every process and in any order.

    Args:
        dataset: Where the clean images come from; ids, labels and classes are passed through.
        name: One of `CORRUPTIONS` or `EXTRA_CORRUPTIONS`.
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
        check_choice(name, severity, preset)
        checked_seed(seed)
        self.dataset, self.name, self.severity = dataset, name, severity
        self.preset, self.seed, self.textures = preset, seed, textures
        self.domain = f"{dataset.domain}/{name}/{severity}"
        self.ids, self.labels, self.classes = dataset.ids, dataset.labels, dataset.classes

    def read(self, index: int) -> Image:
        """Read one image and corrupt it."""
        return corrupt(
            self.dataset.read(index),
            self.name,
            self.severity,
            self.preset,
            self.seed,
            image_id=self.ids[index],
            textures=self.textures,
        )

    def digest(self, index: int) -> str:
        """That of the clean image, and how it is corrupted."""
        return f"{self.dataset.digest(index)}-{self._how()}"

    def stamp(self, index: int) -> str:
        """That of the clean image, and how it is corrupted."""
        return f"{self.dataset.stamp(index)}-{self._how()}"

    def _how(self) -> str:
        return f"{self.name}-{self.severity}-{self.preset}-{self.seed}-{self._textures}"

    @functools.cached_property
    def _textures(self) -> str:
        """What the pictures of frost are, not where: empty where none of a folder are used."""
        if self.textures is None or self.name != "frost":
            return ""
        return Textures.of_folder(self.textures).digest()[:16]

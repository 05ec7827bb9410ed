"""A dataset whose images are brought to the size that a set of corruptions was published for."""

from __future__ import annotations

from neotta.data.base import Image, ImageDataset
from neotta.data.corruptions.size import SIDE, prepare


class PreparedDataset(ImageDataset):
    """The images of another dataset, larger ones cut and shrunk as the authors of ImageNet-C did.

    Args:
        dataset: Where the images come from; everything else is passed through.
        preset: "imagenet", "tiny" or "cifar". Images of its size, or smaller, stay as they are.
    """

    def __init__(self, dataset: ImageDataset, preset: str) -> None:
        self.dataset, self.preset = dataset, preset
        self.domain = f"{dataset.domain}@{preset}"  # not the images as they were: a cache keeps them apart
        self.ids, self.labels, self.classes = dataset.ids, dataset.labels, dataset.classes
        self.in_memory = dataset.in_memory

    def read(self, index: int) -> Image:
        """Read one image and bring it to size."""
        image = self.dataset.read(index)
        return prepare(image, self.preset) if min(image.shape[:2]) > SIDE[self.preset] else image

    def digest(self, index: int) -> str:
        """That of the image as it was, and the size it is brought to."""
        return f"{self.dataset.digest(index)}-{self.preset}"

    def stamp(self, index: int) -> str:
        """That of the image as it was, and the size it is brought to."""
        return f"{self.dataset.stamp(index)}-{self.preset}"

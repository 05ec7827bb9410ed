"""Clean images of the source domain, for methods that need some.

They come from data that is clean by its name or layout, or that the user names. Shifted test images are never taken.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from neotta.data.base import Image, ImageDataset
from neotta.data.opening import open_data
from neotta.data.source import DataSource
from neotta.errors import DataError
from neotta.evaluate.records import content_key
from neotta.models.preprocess import Preprocess

CLEAN_NAMES = ("clean", "none", "original")
"""What domains without a shift are called."""
CLEAN_LAYOUTS = ("digits", "cifar-10", "tiny-imagenet", "imagenet")
"""Layouts of data such as models are trained on."""
SHIFTED_LAYOUTS = (
    "imagenet-r",
    "imagenet-a",
    "imagenet-sketch",
    "imagenet-v2",
    "imagenet-3dcc",
    "imagenet-c-bar",
    "ccc",
)
"""Layouts of data that differs from what models are trained on as it is."""
TRIED = 100
"""Number of images that are tried to find out their size."""


@dataclass(frozen=True)
class CleanImages:
    """Clean images, drawn from a dataset in an order that is always the same.

    Attributes:
        dataset: Where they are.
        preprocess: What makes them ready for the model.
    """

    dataset: ImageDataset
    preprocess: Preprocess

    def images(self, count: int) -> Tensor:
        """So many images, preprocessed, (count, 3, H, W).

        Raises:
            DataError: There are not so many that can be read.
        """
        return torch.stack([self.preprocess(image) for image in self._drawn(count)])

    def digest(self, count: int) -> str:
        """A hash of these images and of their preprocessing."""
        drawn = [self._digest(index) for index in self._order()[:count]]
        return content_key({"images": drawn, "preprocess": self.preprocess.to_dict()})

    def check(self, count: int, readable: int | None = None) -> None:
        """Raise a `DataError` if there are not so many images, or so many that can be read."""
        found = len(self.dataset) if readable is None else readable
        if found < count:
            raise DataError(f"{count} clean images are needed, and {self.dataset.domain!r} has {found}")

    def _order(self) -> list[int]:
        order: list[int] = np.random.default_rng(0).permutation(len(self.dataset)).tolist()
        return order

    def _digest(self, index: int) -> str:
        try:
            return self.dataset.digest(index)
        except (DataError, OSError):  # it cannot be read, and will be passed over
            return ""

    def _drawn(self, count: int) -> list[Image]:
        found: list[Image] = []
        for index in self._order():
            if len(found) == count:
                break
            with contextlib.suppress(DataError):
                found.append(self.dataset.read(index))
        self.check(count, len(found))
        return found


def open_source(spec: str) -> ImageDataset:
    """Open what `--source-data` names: `PATH` or `LAYOUT=PATH`, and after a colon a domain of it.

    Raises:
        DataError: Nothing is there, or it has several domains of which none is clean.
    """
    path, colon, domain = spec.rpartition(":")
    if not colon or "=" in domain or domain.startswith("//") or Path(spec.rpartition("=")[2]).exists():
        path, domain = spec, ""
    source = open_data(path)
    return source.dataset(domain or clean_domain(source))


def clean_domain(source: DataSource) -> str | None:
    """The domain of some data that is clean by its name or by the layout, if there is one."""
    named = (name for name in source.domains if name.split("/")[0] in CLEAN_NAMES)
    return next(named, source.domains[0] if source.layout in CLEAN_LAYOUTS else None)


def fitted(preprocess: Preprocess, dataset: ImageDataset) -> Preprocess:
    """The preprocessing, without resizing where images have the model's size already: the protocol of ImageNet-C."""
    with contextlib.suppress(DataError):
        if first_image(dataset).shape[:2] == tuple(preprocess.size):
            return replace(preprocess, resize=None)
    return preprocess


def first_image(dataset: ImageDataset) -> Image:
    """The first image that can be read, of the first few: one that cannot is skipped here as everywhere."""
    tried = min(len(dataset), TRIED)
    for index in range(tried - 1):
        with contextlib.suppress(DataError):
            return dataset.read(index)
    return dataset.read(max(0, tried - 1))

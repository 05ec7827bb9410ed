"""What a worker process does: read the samples of a batch and resize them for the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from neotta.data.base import Image, ImageDataset
from neotta.data.order import Order
from neotta.errors import DataError, InputError

Transform = Callable[[Image], Tensor]
"""From an image, (H, W, 3) uint8, to what the model takes, (3, H', W') floating."""


@runtime_checkable
class InTwoSteps(Protocol):
    """A preprocessing in two steps: pixels are made in the workers, and normalised in the main process.

    `normalize(pixels(image) / 255)`, channels first, has to be the same as calling it with the image, and
    `normalize` has to treat every pixel of a colour alike.
    """

    def pixels(self, image: Image) -> Image:
        """Resize and crop: (H, W, 3) uint8 to the (H', W', 3) uint8 that the model takes."""

    def normalize(self, x: Tensor) -> Tensor:
        """Normalise (..., 3, H', W') in 0..1."""


class WorkerBatch(NamedTuple):
    """What a worker sends: images of the entries that could be read, and why others could not."""

    images: Tensor
    entries: list[int]
    failed: list[tuple[int, str]]


class Reader(Dataset[WorkerBatch]):
    """Reads and preprocesses a slice of an order; this is what goes to the workers.

    Images are (B, 3, H', W'): uint8, not yet normalised, if the preprocessing is `InTwoSteps`, else float32.
    """

    def __init__(self, datasets: list[ImageDataset], order: Order, preprocess: Transform) -> None:
        self.datasets = datasets
        self.domain, self.index = order.domain, order.index
        self.preprocess = preprocess
        self.dtype = np.uint8 if isinstance(preprocess, InTwoSteps) else np.float32

    def __getitem__(self, part: slice) -> WorkerBatch:
        """Read and preprocess these entries of the order."""
        entries: list[int] = []
        failed: list[tuple[int, str]] = []
        images = np.empty(0, dtype=self.dtype)
        for entry in range(part.start, part.stop):
            try:
                image = self.datasets[self.domain[entry]].read(int(self.index[entry]))
            except DataError as error:
                failed.append((entry, str(error)))
                continue
            ready = self._prepared(image)
            if not entries:
                images = np.empty((part.stop - entry, *ready.shape), dtype=self.dtype)
            if ready.shape != images.shape[1:]:
                raise InputError(
                    f"images of one batch have to come out of the preprocessing equally large, got "
                    f"{images.shape[1:]} and {ready.shape}: set its size"
                )
            images[len(entries)] = ready
            entries.append(entry)
        return WorkerBatch(torch.from_numpy(images[: len(entries)]), entries, failed)

    def _prepared(self, image: Image) -> NDArray[Any]:
        if isinstance(self.preprocess, InTwoSteps):
            return self.preprocess.pixels(image).transpose(2, 0, 1)
        return self.preprocess(image).numpy()


def normalized(pixels: Tensor, normalize: Callable[[Tensor], Tensor]) -> Tensor:
    """Normalise pixels, (B, 3, H, W) uint8, to float32.

    There are only 256 values in each of three colours. On a CPU they are looked up, in one pass and one
    thread: faster than arithmetic on all pixels, and no competition to the encoder's threads.
    """
    if pixels.device.type != "cpu":
        return normalize(pixels.float().div_(255))
    table = normalize(torch.arange(256.0).div_(255).expand(3, 1, 256)).float().numpy()
    images = np.empty(pixels.shape, dtype=np.float32)
    for image, source in zip(images, pixels.numpy(), strict=True):
        for colour, plane in enumerate(source):
            np.take(table[colour, 0], plane, out=image[colour], mode="clip")  # the mode that needs no buffer
    return torch.from_numpy(images)

"""What a worker process does: read the samples of a batch and bring them to the size of the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, cast, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from neotta.data._stream import Stream
from neotta.data.base import Image, ImageDataset
from neotta.errors import DataError, InputError

Preprocess = Callable[[Image], Tensor]
"""From an image, (H, W, 3) uint8, to what the model takes, (3, H', W') floating."""


@runtime_checkable
class InTwoSteps(Protocol):
    """A preprocessing that can be done in two steps: pixels in the workers, normalising in the main process.

    `normalize(pixels(image) / 255)`, channels first, has to be the same as calling it with the image.
    """

    def pixels(self, image: Image) -> Image:
        """Resize and crop: (H, W, 3) uint8 to the (H', W', 3) uint8 that the model takes."""

    def normalize(self, x: Tensor) -> Tensor:
        """Normalise (..., 3, H', W') in 0..1."""


class Part(NamedTuple):
    """What a worker sends: images of the entries that could be read, and why others could not."""

    images: Tensor
    entries: list[int]
    failed: list[tuple[int, str]]


class Reader(Dataset[Part]):
    """Reads and preprocesses a slice of a stream; this is what goes to the workers."""

    def __init__(self, datasets: list[ImageDataset], stream: Stream, preprocess: Preprocess) -> None:
        self.datasets = datasets
        self.domain, self.index = stream.domain, stream.index
        self.preprocess = preprocess
        self.dtype = torch.uint8 if isinstance(preprocess, InTwoSteps) else torch.float32

    def __getitem__(self, part: slice) -> Part:
        """Read and preprocess these entries of the stream."""
        entries: list[int] = []
        failed: list[tuple[int, str]] = []
        images = torch.empty(0)
        for entry in range(part.start, part.stop):
            try:
                image = self.datasets[self.domain[entry]].read(int(self.index[entry]))
            except DataError as error:
                failed.append((entry, str(error)))
                continue
            ready = self._prepared(image)
            if not entries:
                images = torch.empty((part.stop - entry, *ready.shape), dtype=self.dtype)
            if ready.shape != images.shape[1:]:
                raise InputError(
                    f"images of one batch have to come out of the preprocessing equally large, got "
                    f"{tuple(images.shape[1:])} and {tuple(ready.shape)}: set its size"
                )
            images[len(entries)] = ready
            entries.append(entry)
        return Part(images[: len(entries)], entries, failed)

    def _prepared(self, image: Image) -> Tensor:
        """Preprocess one image: (3, H', W') uint8 if it is done in two steps, else floating."""
        if self.dtype != torch.uint8:
            return self.preprocess(image)
        pixels = cast(InTwoSteps, self.preprocess).pixels(image)
        return torch.from_numpy(np.ascontiguousarray(pixels)).permute(2, 0, 1)

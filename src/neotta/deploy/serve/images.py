"""From what a client sent to images that are ready for the model."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from PIL import Image

from neotta.data.decode import decode, probe
from neotta.data.loading import normalized
from neotta.deploy.serve.fair import Owner, Readers
from neotta.deploy.serve.settings import Limits, RequestError
from neotta.models.preprocess import Preprocess
from neotta.neo.statefile import Array

Step = tuple[int, Callable[[], Array]]
"""How many pixels an image has, and what is to be done for it."""
SCANS = 16  # of the largest image, at most; encoders make up to ten


class Images:
    """Makes images ready for a model: first their headers are read, then each is decoded in its turn."""

    def __init__(self, preprocess: Preprocess, limits: Limits) -> None:
        fit = preprocess.resize is None  # cameras do not deliver the size that a model was trained on
        self.preprocess = dataclasses.replace(preprocess, resize=preprocess.size) if fit else preprocess
        self.limits, self.readers = limits, Readers(limits.pixels)

    def opened(self, values: list[bytes] | Array) -> Array | list[Step]:
        """Check what a request holds: images that are ready, or what is to be done for each."""
        if isinstance(values, np.ndarray) and values.dtype == object:
            if values.ndim not in (1, 2) or not all(isinstance(each, bytes) for each in values.flat):
                raise RequestError(400, "BYTES images must be image files, sent as binary data, with the shape [N]")
            values = list(values.flat)
        rows = 0 if isinstance(values, np.ndarray) and not values.ndim else len(values)
        if not 0 < rows <= self.limits.rows:
            raise RequestError(
                413 if rows else 400, f"it holds {rows or 'no'} images: 1 to {self.limits.rows} are taken"
            )
        if isinstance(values, list):
            return [(self._size(file), partial(self._decoded, file)) for file in values]
        if values.dtype == np.uint8:
            if values.ndim != 4 or values.shape[3] != 3 or 0 in values.shape:
                raise RequestError(400, f"UINT8 images must have the shape [N, H, W, 3], not {list(values.shape)}")
            size = self._pixels(*values.shape[1:3])
            return [(size, partial(self.preprocess.pixels, image)) for image in values]
        height, width = self.preprocess.size
        if values.dtype.kind != "f" or values.shape[1:] != (3, height, width):
            raise RequestError(
                400,
                f"images must be FP32 of the shape [N, 3, {height}, {width}], preprocessed, not {values.dtype} "
                f"{list(values.shape)}",
            )
        with np.errstate(over="ignore"):
            ready = np.require(values, np.float32, ["C", "A"])
        if not np.isfinite(ready).all():
            raise RequestError(400, "the images contain NaN, Inf or numbers beyond float32")
        return ready

    async def ready(self, opened: Array | list[Step], owner: Owner) -> Array:
        """The images for the model, (n, 3, H, W) float32, made step by step."""
        if not isinstance(opened, list):
            return opened
        images = np.empty((len(opened), 3, *self.preprocess.size), np.float32)
        for row, (size, work) in enumerate(opened):
            await self.readers.run(partial(self._fill, images[row : row + 1], work), owner, size)
        return images

    def _fill(self, row: Array, work: Callable[[], Array]) -> None:
        pixels = torch.from_numpy(work().transpose(2, 0, 1)[None])
        row[:] = normalized(pixels, self.preprocess.normalize).numpy()

    def thumbnail(self, image: Array) -> bytes:
        """A small JPEG file of an image that is ready."""
        scaled = self.preprocess.denormalize(torch.tensor(image)).clamp(0, 1) * 255
        small, buffer = Image.fromarray(scaled.round().to(torch.uint8).permute(1, 2, 0).numpy()), io.BytesIO()
        small.thumbnail((224, 224))
        small.save(buffer, "JPEG", quality=80)
        return buffer.getvalue()

    def _decoded(self, file: bytes) -> Array:
        return self.preprocess.pixels(decode(file, max_pixels=self.limits.pixels))

    def _size(self, file: bytes) -> int:
        """The pixels to be worked on, by the header; a progressive JPEG goes over them once in each of its scans."""
        header = probe(file, max_pixels=self.limits.pixels)
        scans = file.count(b"\xff\xda") if header.format == "JPEG" else 1
        if scans * header.width * header.height > SCANS * self.limits.pixels:
            raise RequestError(413, f"the image has {scans} scans: too many for its size")
        return self._pixels(header.height, header.width)

    def _pixels(self, height: int, width: int) -> int:
        """How many pixels an image has, before and after resizing: the shorter side is resized to the model's."""
        size = max(height * width, int(np.prod(self.preprocess.resized(height, width), dtype=object)))
        if size > self.limits.pixels:
            raise RequestError(
                413, f"an image of {height} x {width} pixels takes {size:,}, more than {self.limits.pixels:,}"
            )
        return size

"""From what a client sent to images that are ready for the model, decoded in a few threads."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from neotta.data.decode import decode, probe
from neotta.data.loading import normalized
from neotta.deploy.serve.fair import FairQueue, Owner, Waiting
from neotta.deploy.serve.settings import Limits, RequestError
from neotta.models.preprocess import Preprocess
from neotta.neo.statefile import Array

Result = TypeVar("Result")


class Ready(NamedTuple):
    """The images of a request for the model, (n, 3, H, W) float32; the pixels of the last, (H, W, 3), if known."""

    images: Array
    picture: Array | None


class Decoder:
    """Work on images in a few threads, by turns; bounded by the pixels that wait."""

    def __init__(self, most: int, threads: int = 2) -> None:
        self.queue: FairQueue[Callable[[], Any]] = FairQueue(most, "pixels")
        self._pool, self._free = ThreadPoolExecutor(threads, thread_name_prefix="neotta-decode"), threads

    async def run(self, work: Callable[[], Result], owner: Owner, pixels: int) -> Result:
        """Run something on so many pixels, in its turn; nothing happens if the caller is cancelled before."""
        entry = self.queue.add(work, owner, pixels)
        self._start()
        result: Result = await self.queue.outcome(entry)
        return result

    def _start(self) -> None:
        while self._free and self.queue.first():
            self._free -= 1
            asyncio.ensure_future(self._work(self.queue.take())).add_done_callback(lambda _: self._start())

    async def _work(self, entry: Waiting[Callable[[], Any]]) -> None:
        try:
            entry.settle(await asyncio.get_running_loop().run_in_executor(self._pool, entry.item))
        except Exception as error:
            entry.settle(error)
        finally:
            self._free += 1

    def shutdown(self) -> None:
        self._pool.shutdown(cancel_futures=True)


class Images:
    """Makes images ready for a model."""

    def __init__(self, preprocess: Preprocess, limits: Limits) -> None:
        fit = preprocess.resize is None  # cameras do not deliver the size that a model was trained on
        self.preprocess = dataclasses.replace(preprocess, resize=preprocess.size) if fit else preprocess
        self.limits, self.decoder = limits, Decoder(4 * limits.pixels)

    async def from_files(self, files: Sequence[bytes], owner: Owner) -> Ready:
        self._check_rows(len(files))
        headers = await asyncio.to_thread(lambda: [probe(file, max_pixels=self.limits.pixels) for file in files])
        sizes = [self._pixels(header.height, header.width) for header in headers]
        pixels = []
        for file, size in zip(files, sizes, strict=True):
            pixels.append(await self.decoder.run(partial(self._decoded, file), owner, size))
        return self._normalised(pixels)

    async def from_tensor(self, values: Array, owner: Owner) -> Ready:
        """Check a tensor of a request: image files, pixels, or images that are ready."""
        if values.dtype == object:
            if values.ndim not in (1, 2) or not all(isinstance(each, bytes) for each in values.flat):
                raise RequestError(400, "BYTES images must be image files, sent as binary data, with the shape [N]")
            return await self.from_files(list(values.flat), owner)
        self._check_rows(len(values) if values.ndim else 0)
        if values.dtype == np.uint8:
            if values.ndim != 4 or values.shape[3] != 3 or 0 in values.shape:
                raise RequestError(400, f"UINT8 images must have the shape [N, H, W, 3], not {list(values.shape)}")
            size = self._pixels(*values.shape[1:3])
            work = [partial(self.preprocess.pixels, image) for image in values]
            return self._normalised([await self.decoder.run(each, owner, size) for each in work])
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
        return Ready(ready, None)

    def _normalised(self, pixels: Sequence[Array]) -> Ready:
        planes = torch.from_numpy(np.stack(pixels).transpose(0, 3, 1, 2))
        return Ready(normalized(planes, self.preprocess.normalize).numpy(), pixels[-1])

    def pixels(self, image: Array) -> Array:
        """The pixels, (H, W, 3) uint8, of an image that is ready."""
        scaled = self.preprocess.denormalize(torch.tensor(image)).clamp(0, 1) * 255
        return np.asarray(scaled.round().to(torch.uint8).permute(1, 2, 0).numpy())

    def _decoded(self, file: bytes) -> Array:
        return self.preprocess.pixels(decode(file, max_pixels=self.limits.pixels))

    def _pixels(self, height: int, width: int) -> int:
        """How many pixels an image has, before and after resizing: the shorter side is resized to the model's."""
        size = max(height * width, int(np.prod(self.preprocess.resized(height, width), dtype=object)))
        if size > self.limits.pixels:
            raise RequestError(
                413, f"an image of {height} x {width} pixels takes {size:,}, more than {self.limits.pixels:,}"
            )
        return size

    def _check_rows(self, rows: int) -> None:
        if rows < 1:
            raise RequestError(400, "the request holds no image")
        if rows > self.limits.rows:
            raise RequestError(413, f"the request holds {rows} images: at most {self.limits.rows} are taken at once")

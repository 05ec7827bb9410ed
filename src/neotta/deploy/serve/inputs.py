"""From what a client sent to images that are ready for the model."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from neotta.data.decode import decode
from neotta.deploy.serve.classifier import Job
from neotta.deploy.serve.guard import RequestError
from neotta.deploy.serve.settings import Limits
from neotta.models.preprocess import Preprocess
from neotta.neo.statefile import Array


def from_files(files: Sequence[bytes], preprocess: Preprocess, limits: Limits, camera: str, adapt: bool) -> Job:
    """Decode image files."""
    check_rows(len(files), limits)
    fit = resizing(preprocess)
    pixels = [fit.pixels(decode(content, max_pixels=limits.pixels)) for content in files]
    return Job(_normalised(pixels, preprocess), camera, adapt, pixels)


def from_tensor(values: Array, preprocess: Preprocess, limits: Limits, camera: str, adapt: bool) -> Job:
    """Check a tensor of a request: preprocessed images, pixels, or image files."""
    height, width = preprocess.size
    if values.dtype == object:
        if values.ndim not in (1, 2) or not all(isinstance(each, bytes) for each in values.reshape(-1)):
            raise RequestError(400, "BYTES images must be image files, sent as binary data, with the shape [N]")
        return from_files(list(values.reshape(-1)), preprocess, limits, camera, adapt)
    check_rows(len(values) if values.ndim else 0, limits)
    if values.dtype == np.uint8:
        if values.ndim != 4 or values.shape[3] != 3 or 0 in values.shape:
            raise RequestError(400, f"UINT8 images must have the shape [N, height, width, 3], not {list(values.shape)}")
        if values.shape[1] * values.shape[2] > limits.pixels:
            raise RequestError(413, f"an image has more than {limits.pixels:,} pixels")
        pixels = [resizing(preprocess).pixels(each) for each in values]
        return Job(_normalised(pixels, preprocess), camera, adapt, pixels)
    if values.dtype.kind != "f" or values.shape[1:] != (3, height, width):
        raise RequestError(
            400,
            f"images must be FP32 of the shape [N, 3, {height}, {width}], preprocessed, not {values.dtype} "
            f"{list(values.shape)}",
        )
    ready = np.ascontiguousarray(values, np.float32)
    if not np.isfinite(ready).all():
        raise RequestError(400, "the images contain NaN, Inf or numbers beyond float32")
    return Job(ready, camera, adapt)


def check_rows(rows: int, limits: Limits) -> None:
    """Reject a request without images, or with too many."""
    if rows < 1:
        raise RequestError(400, "the request holds no image")
    if rows > limits.rows:
        raise RequestError(413, f"the request holds {rows} images: at most {limits.rows} are taken at once")


def resizing(preprocess: Preprocess) -> Preprocess:
    """The preprocessing, for images of any size: cameras do not deliver the size that a model was trained on."""
    return preprocess if preprocess.resize is not None else dataclasses.replace(preprocess, resize=preprocess.size)


def _normalised(pixels: Sequence[Array], preprocess: Preprocess) -> Array:
    """The model's input from images of its size, (H, W, 3) uint8 each."""
    scaled = np.stack(pixels).transpose(0, 3, 1, 2).astype(np.float32, order="C") / np.float32(255)
    mean, std = (np.array(values, np.float32).reshape(3, 1, 1) for values in (preprocess.mean, preprocess.std))
    return (scaled - mean) / std

"""Zooming into the middle of a picture, and the blur of a camera that moves forward."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neotta.data.base import Image
from neotta.data.corruptions.filters import to_bytes

Array = NDArray[Any]


def zoom_blur(image: Image, step: float, count: int) -> Image:
    """Mean of the picture and its zooms by 1, 1 + step, ... (`count` factors: the clean one counts twice)."""
    clean = np.ascontiguousarray(image.transpose(2, 0, 1)).astype(np.float32)
    clean /= 255
    total = clean.copy()  # the zoom by 1
    increment = (1 + step) - 1  # the rounding of a float range, which may decide ceil(size / factor)
    for i in range(1, count):
        total += clipped_zoom(clean, 1 + i * increment)
    total += clean
    total /= np.float32(count + 1)
    return np.ascontiguousarray(to_bytes(total).transpose(1, 2, 0))


def clipped_zoom(layers: Array, factor: float) -> Array:
    """Enlarge the middle of each layer to the size of the whole.

    Args:
        layers: (..., H, W), float.
        factor: At least 1; 1 gives the layers back.
    """
    if factor == 1:
        return layers
    height, width = layers.shape[-2:]
    above, below, down = _zoom_axis(height, factor, layers.dtype.str)
    left, right, across = _zoom_axis(width, factor, layers.dtype.str)
    rows = layers.take(above, axis=-2)
    rows += (layers.take(below, axis=-2) - rows) * down[:, None]
    zoomed = rows.take(left, axis=-1)
    zoomed += (rows.take(right, axis=-1) - zoomed) * across
    return zoomed


@lru_cache(maxsize=256)
def _zoom_axis(size: int, factor: float, dtype: str) -> tuple[Array, Array, Array]:
    """For each of `size` output pixels: the two input pixels and the share of the second, each (size,).

    The crop's corner pixels are the corners of the enlarged picture, which is then trimmed to `size`.
    """
    crop = math.ceil(size / factor)
    start = (size - crop) // 2
    enlarged = round(crop * factor)
    trim = (enlarged - size) // 2
    position = np.arange(trim, trim + size) * ((crop - 1) / max(enlarged - 1, 1))
    lower = np.minimum(position.astype(np.intp), crop - 1)
    upper = np.minimum(lower + 1, crop - 1)
    return start + lower, start + upper, (position - lower).astype(dtype)

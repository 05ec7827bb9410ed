"""Spatter: drops of water or splashes of mud on the lens."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from neotta.data.base import Image
from neotta.data.corruptions.draws import Draws
from neotta.data.corruptions.edges import canny, chamfer_distance, equalise
from neotta.data.corruptions.filters import gaussian, mirrored, to_bytes

WATER = np.array([175, 238, 238], np.float32) / 255
MUD = np.array([63, 42, 20], np.float32) / 255
EMBOSS = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])

Array = NDArray[Any]


def spatter(
    image: Image,
    draws: Draws,
    mean: float,
    deviation: float,
    sigma: float,
    threshold: float,
    strength: float,
    mud: int,
) -> Image:
    """Drops where a smooth random layer exceeds a threshold.

    Args:
        image: (H, W, 3).
        draws: Where the random numbers come from: one normal number per pixel.
        mean: Of the layer.
        deviation: Of the layer, before smoothing.
        sigma: Smoothing of the layer, which sets the size of the drops.
        threshold: What of the layer is dry.
        strength: Of the water; for mud, how soft its edge is.
        mud: 0 for water, 1 for mud.
    """
    layer = gaussian(draws.normal(image.shape[:2]).astype(np.float64) * deviation + mean, sigma)
    clean = image.astype(np.float32) / 255
    if mud:
        cover = gaussian((layer > threshold).astype(np.float32), strength)
        cover[cover < 0.8] = 0
        return to_bytes(clean * (1 - cover[..., None]) + cover[..., None] * MUD)
    layer[layer < threshold] = 0
    return to_bytes(clean + (_water(layer) * np.float32(strength))[..., None] * WATER)


def _water(layer: Array) -> NDArray[np.float32]:
    """Brightness of the water, (H, W) float32 up to 1: drops that catch light on one side."""
    depth = (255 * layer).astype(np.int64).astype(np.uint8)
    distance = np.minimum(chamfer_distance(canny(depth, 50, 150)), 20)
    inner = equalise((_box(distance) / 9).astype(np.uint8))
    relief = np.clip(_correlate(inner, EMBOSS), 0, 255)
    shine = np.rint(_box(relief) / 9)
    water = (depth * shine).astype(np.float32)
    peak = water.max()
    return water / peak if peak > 0 else water  # no drop at all: a picture as it was


def _box(plane: Array) -> Array:
    """Sum over 3 x 3 pixels."""
    return _correlate(plane, np.ones((3, 3), int))


def _correlate(plane: Array, kernel: Array) -> Array:
    """3 x 3 correlation, whole-sample symmetric border."""
    height, width = plane.shape
    padded = plane[np.ix_(mirrored(height, 1), mirrored(width, 1))]
    if padded.dtype == np.uint8:
        padded = padded.astype(np.int64)
    windows = ((kernel[i, j], padded[i : i + height, j : j + width]) for i in range(3) for j in range(3))
    return np.asarray(sum(weight * window for weight, window in windows if weight))

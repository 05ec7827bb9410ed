"""Snow, fog, frost on the window, and drops of water or splashes of mud on the lens."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neotta.data.base import Image
from neotta.data.corruptions.blurs import clipped_zoom, motion_blur_along
from neotta.data.corruptions.common import Draws, fractal, gaussian, to_bytes
from neotta.data.corruptions.frost import Textures

Array = NDArray[Any]

LUMA = np.array([0.299, 0.587, 0.114], np.float32)


def snow(
    image: Image,
    draws: Draws,
    mean: float,  # of the normal numbers from which flakes are made
    deviation: float,  # of the same
    zoom: float,  # size of a flake in pixels
    threshold: float,  # numbers below it are no flake
    radius: float,  # of the motion blur of the flakes
    sigma: float,  # of the same
    keep: float,  # how much of the picture is not whitened
) -> Image:
    """Falling flakes over a whitened picture. Draws the flakes, then the direction of their fall."""
    flakes = clipped_zoom(draws.normal(image.shape[:2]) * deviation + mean, zoom)
    flakes[flakes < threshold] = 0
    angle = float(draws.uniform(-135, -45))
    fallen = motion_blur_along(to_bytes(flakes), radius, sigma, angle).astype(np.float32) / 255
    clean = image.astype(np.float32) / 255
    white = (clean @ LUMA) * np.float32(1.5) + np.float32(0.5)
    whitened = np.maximum(clean, white[..., None])
    whitened *= np.float32(1 - keep)
    clean *= np.float32(keep)
    whitened += clean
    whitened += (fallen + fallen[::-1, ::-1])[..., None]
    return to_bytes(whitened)


def frost(image: Image, draws: Draws, textures: Textures, keep: float, strength: float) -> Image:
    """Ice on the window: a random part of a random texture is added. Draws the texture, the row, the column."""
    height, width = image.shape[:2]
    texture = textures.covering(int(draws.integers(0, len(textures))), height, width)
    row = int(draws.integers(0, max(texture.shape[0] - height, 1)))
    column = int(draws.integers(0, max(texture.shape[1] - width, 1)))
    return frost_over(image, texture[row : row + height, column : column + width], keep, strength)


def frost_over(image: Image, texture: Image, keep: float, strength: float) -> Image:
    """`keep * image + strength * texture` (of the same shape), by a table of all pairs of bytes."""
    index = image.astype(np.uint16)
    index <<= 8
    index |= texture
    return _frost_table(keep, strength).take(index)


@lru_cache(maxsize=32)
def _frost_table(keep: float, strength: float) -> NDArray[np.uint8]:
    levels = np.arange(256)
    return to_bytes(keep * levels[:, None] + strength * levels, 255).reshape(-1)


def fog(image: Image, draws: Draws, thickness: float, decay: float) -> Image:
    """Add a cloud of the given thickness, the smoother the larger `decay`; the brightest value stays."""
    height, width = image.shape[:2]
    power_of_two = 1 << max(1, (max(height, width) - 1).bit_length())
    cloud = fractal(draws, power_of_two, decay)[:height, :width]
    peak = float(image.max()) / 255
    clean = image.astype(np.float32)
    clean /= 255
    clean += (cloud * np.float32(thickness))[..., None]
    clean *= np.float32(peak / (peak + thickness))
    return to_bytes(clean)


WATER = np.array([175, 238, 238], np.float32) / 255
MUD = np.array([63, 42, 20], np.float32) / 255
EMBOSS = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])


def spatter(
    image: Image,
    draws: Draws,
    mean: float,  # of the layer
    deviation: float,  # of the layer before smoothing
    sigma: float,  # smoothing of the layer, which sets the size of the drops
    threshold: float,  # values of the layer below it are dry
    strength: float,  # of the water; for mud, how soft its edge is
    mud: int,  # 0 for water, 1 for mud
) -> Image:
    """Drops where a smooth random layer, one normal number per pixel, exceeds a threshold."""
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
    from scipy.ndimage import correlate

    def box(plane: Array) -> Array:
        return np.asarray(correlate(plane, np.ones((3, 3)), mode="mirror"))

    depth = (255 * layer).astype(np.int64).astype(np.uint8)
    distance = np.minimum(chamfer_distance(canny(depth, 50, 150)), 20)
    inner = equalise((box(distance) / 9).astype(np.uint8))
    relief = np.clip(correlate(inner.astype(np.int64), EMBOSS, mode="mirror"), 0, 255)
    shine = np.rint(box(relief) / 9)
    water = (depth * shine).astype(np.float32)
    peak = water.max()
    return water / peak if peak > 0 else water  # no drop at all: a picture as it was


STRAIGHT, DIAGONAL, KNIGHT = 1.0, 1.4, 2.1969
"""Lengths of the steps of the chamfer distance: to the side, across the corner, and a knight's move."""


def canny(grey: NDArray[np.uint8], low: int, high: int) -> NDArray[np.bool_]:
    """Edges by Canny's method: 3 x 3 Sobel gradients, their L1 norm, thin ridges, two thresholds.

    Ridges above the lower one count if they touch, step by step, a ridge above the higher one.
    """
    from scipy.ndimage import label, sobel

    dx, dy = (sobel(grey.astype(np.int32), axis, mode="nearest") for axis in (1, 0))
    strength = np.abs(dx) + np.abs(dy)
    ridge = _ridges(dx, dy, strength) & (strength > low)
    pieces, count = label(ridge, structure=np.ones((3, 3), int))
    strong = np.zeros(count + 1, bool)
    strong[pieces[ridge & (strength > high)]] = True
    return np.asarray(strong[pieces])


def _ridges(dx: Array, dy: Array, strength: Array) -> NDArray[np.bool_]:
    """Where the gradient is largest along its own direction, rounded to one of four."""
    height, width = strength.shape
    padded = np.pad(strength, 1)

    def beside(down: int, right: int) -> Array:
        return padded[1 + down : 1 + down + height, 1 + right : 1 + right + width]

    scale = 1 << 15
    tangent = round((np.sqrt(2) - 1) * scale)  # of 22.5 degrees, in whole numbers
    steep, flat = np.abs(dy) * scale, np.abs(dx) * tangent
    horizontal = steep < flat
    vertical = steep > flat + np.abs(dx) * 2 * scale
    falling = (dx ^ dy) < 0
    across = (strength > beside(0, -1)) & (strength >= beside(0, 1))
    upright = (strength > beside(-1, 0)) & (strength >= beside(1, 0))
    rising_slope = (strength > beside(-1, 1)) & (strength > beside(1, -1))
    falling_slope = (strength > beside(-1, -1)) & (strength > beside(1, 1))
    slanted = np.where(falling, rising_slope, falling_slope)
    return np.where(horizontal, across, np.where(vertical, upright, slanted))


def chamfer_distance(marked: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Length of the shortest way to a marked pixel by steps of the 5 x 5 chamfer mask, (H, W), or infinite."""
    distance = np.where(marked, 0.0, np.inf)
    _sweep_down(distance)
    _sweep_down(distance[::-1, ::-1])
    return distance


def _sweep_down(distance: Array) -> None:
    """Update every pixel, in place, from the rows above it and from its left, row after row."""
    height, width = distance.shape
    columns = np.arange(width) * STRAIGHT
    padded = np.full((height + 2, width + 4), np.inf)
    padded[2:, 2:-2] = distance
    for row in range(2, height + 2):
        above, second = padded[row - 1], padded[row - 2]
        best = np.minimum(above[:-4], above[4:])
        np.minimum(best, second[1:-3], out=best)
        np.minimum(best, second[3:-1], out=best)
        best += KNIGHT
        np.minimum(best, np.minimum(above[1:-3], above[3:-1]) + DIAGONAL, out=best)
        np.minimum(best, above[2:-2] + STRAIGHT, out=best)
        np.minimum(best, padded[row, 2:-2], out=best)
        # From the left, all at once: the least of best[j] + (i - j) over j <= i.
        best -= columns
        np.minimum.accumulate(best, out=best)
        np.add(best, columns, out=padded[row, 2:-2])
    distance[...] = padded[2:, 2:-2]


def equalise(grey: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Spread the histogram: the darkest value present becomes 0, the brightest 255."""
    counts = np.bincount(grey.reshape(-1), minlength=256)
    first = int(np.flatnonzero(counts)[0])
    others = grey.size - counts[first]
    if others == 0:
        return grey
    counts[first] = 0
    table = np.rint(np.cumsum(counts) * (255 / others)).astype(np.uint8)
    return np.asarray(table[grey])

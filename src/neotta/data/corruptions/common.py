"""What several corruptions share: random numbers, conversion to bytes, filters, borders, bilinear sampling, clouds.

A corruption never touches a global generator: it asks a `Draws` object. The draws of one picture depend on
(seed, image id, corruption, severity) and the version of NumPy: neither the number of workers nor the order
of the pictures matters. The pictures depend on the versions of SciPy and Pillow as well.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neotta.data.base import Image

Array = NDArray[Any]
CACHED_SIDE = 1024
"""Precomputed operators are kept for images up to this side; for larger ones they would fill the memory."""


class Draws:
    """A source of random numbers; every method draws one block, in C order, in float32 where that is faster."""

    def __init__(self, generator: np.random.Generator) -> None:
        self.generator = generator

    def normal(self, shape: tuple[int, ...]) -> Array:
        """Standard normal numbers."""
        return self.generator.standard_normal(shape, dtype=np.float32)

    def uniform(self, low: float, high: float, shape: tuple[int, ...] = ()) -> Array:
        """Uniform numbers in [low, high)."""
        block = np.asarray(self.generator.random(shape, dtype=np.float32))
        return np.asarray(block * np.float32(high - low) + np.float32(low))

    def integers(self, low: int, high: int, shape: tuple[int, ...] = ()) -> Array:
        """Uniform integers in {low, ..., high - 1}."""
        return np.asarray(self.generator.integers(low, high, shape))

    def poisson(self, rate: Array) -> Array:
        """One Poisson number per entry of `rate`."""
        return self.generator.poisson(rate)


def draws_for(seed: int, image_id: str, name: str, severity: int) -> Draws:
    """The draws of one picture: a pure function of the four arguments, for one version of NumPy.

    NumPy may change what its generators draw from one version to the next.

    A cryptographic hash, because Python's own `hash` of a string changes from process to process.
    """
    key = f"{seed}/{name}/{severity}/{image_id}".encode("utf-8", "surrogateescape")
    entropy = int.from_bytes(hashlib.blake2b(key, digest_size=16).digest(), "little")
    return Draws(np.random.Generator(np.random.SFC64(entropy)))


def to_bytes(image: Array, top: float = 1.0) -> Image:
    """Clip to [0, top] and convert to uint8, where `top` becomes 255; truncates toward zero, never rounds."""
    clipped = np.clip(image, 0, top)
    if top != 255:
        clipped *= 255 / top
    return clipped.astype(np.uint8)


def gaussian(image: Array, sigma: float, border: str = "nearest", truncate: float = 4.0) -> Array:
    """Gaussian filter over the first two axes of (H, W) or (H, W, C), float; channels are filtered independently.

    The border "nearest" repeats the edge pixel; "reflect" mirrors with the edge pixel repeated. The taps reach
    `int(truncate * sigma + 0.5)` pixels to each side.
    """
    from scipy.ndimage import gaussian_filter

    per_axis = (sigma, sigma) + (0,) * (image.ndim - 2)
    filtered: Array = gaussian_filter(image, per_axis, mode=border, truncate=truncate)
    return filtered


def reflecting_gaussian(size: int, sigma: float, truncate: float) -> NDArray[np.float32]:
    """The filter `gaussian` with border "reflect" on a line of pixels as a dense matrix, (size, size).

    For a filter wider than the image, two products with this matrix are far faster than filtering.
    """
    make = _reflecting_gaussian if size <= CACHED_SIDE else _reflecting_gaussian.__wrapped__
    return make(size, sigma, truncate)


@lru_cache(maxsize=16)
def _reflecting_gaussian(size: int, sigma: float, truncate: float) -> NDArray[np.float32]:
    reach = int(truncate * sigma + 0.5)
    offsets = np.arange(-reach, reach + 1)
    taps = np.exp(-(offsets**2) / (2 * sigma**2))
    rows = np.arange(size)
    matrix = np.zeros((size, size))
    for offset, tap in zip(offsets, taps / taps.sum(), strict=True):
        matrix[rows, fold_reflect(rows + offset, size).astype(np.intp)] += tap
    return matrix.astype(np.float32)


def fold_mirror(position: Array, size: int) -> Array:
    """Fold coordinates into [0, size-1], whole-sample symmetric: the edge pixel is not repeated."""
    if size == 1:
        return np.zeros_like(position)
    return _fold(np.abs(position), 2 * (size - 1))


def fold_reflect(position: Array, size: int) -> Array:
    """Fold coordinates into [0, size-1], half-sample symmetric: the edge pixel is repeated."""
    return np.clip(_fold(np.abs(position + 0.5), 2 * size) - 0.5, 0, size - 1)


def _fold(position: Array, period: int) -> Array:
    if position.max() > period:  # rare, and the remainder is slow
        position = position % period
    return np.asarray(np.minimum(position, period - position))


def bilinear(image: NDArray[np.float32], rows: Array, columns: Array) -> NDArray[np.float32]:
    """Sample an image between its pixels: (H, W, 4) float32 at rows and columns, (H', W') float32 inside of it.

    Four channels, as numpy gathers 16 bytes several times faster than 12.
    """
    height, width = image.shape[:2]
    top, left = rows.astype(np.intp), columns.astype(np.intp)
    np.minimum(top, max(height - 2, 0), out=top)
    np.minimum(left, max(width - 2, 0), out=left)
    down, right = (rows - top)[..., None], (columns - left)[..., None]
    index = top * width + left
    next_row, next_column = width * (height > 1), int(width > 1)
    pixels = image.reshape(-1, image.shape[2])

    def pair(start: Array) -> Array:
        first = pixels.take(start, axis=0)
        second = pixels.take(start + next_column, axis=0)
        second -= first
        second *= right
        second += first
        return second

    upper, lower = pair(index), pair(index + next_row)
    lower -= upper
    lower *= down
    lower += upper
    return lower


def fractal(draws: Draws, size: int, decay: float) -> NDArray[np.float32]:
    """A cloud that tiles the plane, (size, size) float32, by the diamond-square method; values fill [0, 1].

    The size is a power of two, at least 2; the noise falls by the square of `decay` from level to level. Draws one
    block of uniform numbers each for the centres, row edges and column edges of every level.
    """
    cloud = np.zeros((size, size), np.float32)
    step, wobble = size, 100.0

    def noisy(four: NDArray[Any]) -> NDArray[Any]:
        return four / 4 + wobble * draws.uniform(-wobble, wobble, four.shape)

    while step >= 2:
        half = step // 2
        corners = cloud[::step, ::step]
        below, right = np.roll(corners, -1, 0), np.roll(corners, -1, 1)
        centres = noisy(corners + below + right + np.roll(below, -1, 1))
        cloud[half::step, half::step] = centres
        cloud[::step, half::step] = noisy(centres + np.roll(centres, 1, 0) + corners + right)
        cloud[half::step, ::step] = noisy(centres + np.roll(centres, 1, 1) + corners + below)
        step, wobble = half, wobble / decay
    cloud -= cloud.min()
    cloud /= cloud.max()
    return cloud

"""The blur of a lens, of frosted glass, of a shaken camera and of one that moves forward."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neotta.data.base import Image
from neotta.data.corruptions.common import CACHED_SIDE, Draws, gaussian, to_bytes

Array = NDArray[Any]


def gaussian_blur(image: Image, sigma: float) -> Image:
    """Gaussian blur of standard deviation `sigma` pixels."""
    return to_bytes(gaussian(image / 255, sigma))


def defocus_blur(image: Image, radius: float, alias: float) -> Image:
    """Blur by a disk of `radius` pixels, its edge softened by a Gaussian of standard deviation `alias`."""
    from scipy import fft

    kernel = defocus_kernel(radius, alias)
    reach = kernel.shape[0] // 2
    height, width = image.shape[:2]
    planes = (image / 255).transpose(2, 0, 1)
    padded = np.pad(planes, [(0, 0), (reach, reach), (reach, reach)], mode="reflect")
    transform = _spectrum if max(height, width) <= CACHED_SIDE else _spectrum.__wrapped__
    shape, spectrum = transform(radius, alias, height + 2 * reach, width + 2 * reach)
    product = fft.rfft2(padded, shape) * spectrum
    blurred = fft.irfft2(product, shape, overwrite_x=True)[:, :height, :width]
    return np.ascontiguousarray(to_bytes(blurred).transpose(1, 2, 0))


@lru_cache(maxsize=16)
def defocus_kernel(radius: float, alias: float) -> NDArray[np.float32]:
    """The softened disk, (17, 17) float32 up to radius 8, larger above.

    Not normalised after the softening: where the disk touches the border of the kernel its sum exceeds 1, and
    the published pictures are brighter for it.
    """
    reach, window = (8, 3) if radius <= 8 else (int(radius), 5)
    line = np.arange(-reach, reach + 1)
    disk = (line[:, None] ** 2 + line**2 <= radius**2).astype(np.float32)
    disk /= disk.sum()
    taps = np.exp(-((np.arange(window) - window // 2) ** 2) / (2 * alias**2))
    taps = (taps / taps.sum()).astype(np.float32)
    return _smooth(_smooth(disk, taps).T, taps).T


def _smooth(rows: NDArray[np.float32], taps: NDArray[np.float32]) -> NDArray[np.float32]:
    """Filter along the first axis, whole-sample symmetric border.

    In float32, as in the public scripts: the last bit of the kernel decides how an even area is truncated.
    """
    size, reach = len(rows), len(taps) // 2
    padded = np.pad(rows, [(reach, reach), (0, 0)], mode="reflect")
    return np.asarray(sum(tap * padded[i : i + size] for i, tap in enumerate(taps)))


@lru_cache(maxsize=16)
def _spectrum(radius: float, alias: float, height: int, width: int) -> tuple[tuple[int, int], Array]:
    """A fast transform size for a padded picture, and the kernel's spectrum in that size.

    Conjugate: the product of spectra then correlates, and its sample (0, 0) is the first whole window.
    """
    from scipy import fft

    shape = (fft.next_fast_len(height, real=True), fft.next_fast_len(width, real=True))
    return shape, np.conj(fft.rfft2(defocus_kernel(radius, alias).astype(np.float64), shape))


Index = NDArray[np.intp]


def glass_blur(image: Image, draws: Draws, sigma: float, reach: int, sweeps: int) -> Image:
    """Blur, let every pixel take the value of a random neighbour `sweeps` times, and blur again."""
    height, width = image.shape[:2]
    soft = to_bytes(gaussian(image / 255, sigma))
    source = np.arange(height * width)
    rows, columns = _targets(height, reach), _targets(width, reach)
    offsets = draws.integers(-reach, reach, (sweeps, len(rows), len(columns), 2))
    for dx, dy in offsets.transpose(0, 3, 1, 2):
        source = source[_sweep(height, width, rows, columns, dy, dx)]
    shuffled = soft.reshape(-1, 3).take(source, axis=0).reshape(soft.shape)
    return to_bytes(gaussian(shuffled / 255, sigma))


def _targets(size: int, reach: int) -> Index:
    """Rows (or columns) that receive a value, in the order of the visit: from the last to the first."""
    return np.arange(size - reach, reach, -1)


def _sweep(height: int, width: int, rows: Index, columns: Index, dy: NDArray[Any], dx: NDArray[Any]) -> Index:
    """From which pixel of the picture before a sweep each pixel after it comes, (H * W,).

    The visits are sequential and each *copies* its neighbour, at `dy` and `dx` from it: a neighbour visited earlier in
    the same sweep (below, or to the right in the same row) hands on the value it received itself. All chains are
    followed at once, each round doubling the stride, so that a few rounds replace the loop over pixels. Rows, (R,), and
    columns, (C,), are those of the targets in the order of the visit.
    """
    target = rows[:, None] * width + columns
    neighbour = target + dy * width + dx
    taken = np.arange(height * width)
    taken[target] = neighbour

    visited = np.zeros(height * width, bool)
    visited[target] = True
    chained = (neighbour > target) & visited[neighbour]
    if not chained.any():
        return taken
    root = np.arange(height * width)
    root[target] = np.where(chained, neighbour, target)
    while True:
        further = root[root]
        if np.array_equal(further, root):
            return taken[root]
        root = further


def motion_blur(image: Image, draws: Draws, radius: float, sigma: float) -> Image:
    """Blur along a random direction, between 45 degrees up and 45 degrees down."""
    return motion_blur_along(image, radius, sigma, float(draws.uniform(-45, 45)))


def motion_blur_along(image: NDArray[np.uint8], radius: float, sigma: float, angle: float) -> NDArray[np.uint8]:
    """Blur (H, W) or (H, W, C) along one direction with a one-sided kernel, which also displaces the content.

    The kernel has 2 * ceil(radius) + 1 taps of half a Gaussian of deviation sigma; the angle is in degrees, the y axis
    points down.
    """
    taps = _taps(radius, sigma, angle)
    dys, dxs = [dy for dy, _ in taps], [dx for _, dx in taps]
    top, bottom = max(0, -min(dys)), max(0, *dys)
    left, right = max(0, -min(dxs)), max(0, *dxs)
    edges: list[tuple[int, int]] = [(top, bottom), (left, right)] + [(0, 0)] * (image.ndim - 2)
    padded = np.pad(image, edges, mode="edge").astype(np.float32)
    height, width = image.shape[:2]
    total = np.zeros(image.shape, np.float32)
    part = np.empty_like(total)
    for (dy, dx), weight in taps.items():
        rows, columns = slice(top + dy, top + dy + height), slice(left + dx, left + dx + width)
        np.multiply(padded[rows, columns], weight, out=part)
        total += part
    return _sixteen_bits_to_eight(total)


def _taps(radius: float, sigma: float, angle: float) -> dict[tuple[int, int], np.float32]:
    """Weight of each pixel offset (dy, dx); taps that fall on the same pixel are added."""
    steps = np.arange(2 * math.ceil(radius) + 1)
    weights = np.exp(-(steps**2) / (2 * sigma**2))
    weights /= weights.sum()
    # Halves go down: the nearest pixel as the public scripts' image library finds it.
    dys = np.ceil(steps * math.sin(math.radians(angle)) - 0.5).astype(int)
    dxs = np.ceil(steps * math.cos(math.radians(angle)) - 0.5).astype(int)
    taps: dict[tuple[int, int], Any] = {}
    for dy, dx, weight in zip(dys.tolist(), dxs.tolist(), weights.tolist(), strict=True):
        if weight > 1e-8:  # of 255: nothing a 16-bit value could show
            taps[dy, dx] = taps.get((dy, dx), 0.0) + weight
    return {offset: np.float32(weight) for offset, weight in taps.items()}


def _sixteen_bits_to_eight(blurred: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Round to 16 bits, then drop to 8: practically truncation, but exact where the sum is a whole number."""
    wide = blurred * np.float32(257)
    wide += np.float32(0.5)
    return (wide.astype(np.uint16) // np.uint16(257)).astype(np.uint8)


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
    """Enlarge the middle of each layer, (..., H, W) float, to the size of the whole; by a factor of at least 1."""
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

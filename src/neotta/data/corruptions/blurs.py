"""Blur of a lens: gaussian, and out of focus."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neotta.data.base import Image
from neotta.data.corruptions.filters import CACHED_SIDE, gaussian, mirrored, to_bytes

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
    padded = planes.take(mirrored(height, reach), axis=1).take(mirrored(width, reach), axis=2)
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
    padded = rows[mirrored(size, reach)]
    return np.asarray(sum(tap * padded[i : i + size] for i, tap in enumerate(taps)))


@lru_cache(maxsize=16)
def _spectrum(radius: float, alias: float, height: int, width: int) -> tuple[tuple[int, int], Array]:
    """A fast transform size for a padded picture, and the kernel's spectrum in that size.

    Conjugate: the product of spectra then correlates, and its sample (0, 0) is the first whole window.
    """
    from scipy import fft

    shape = (fft.next_fast_len(height, real=True), fft.next_fast_len(width, real=True))
    return shape, np.conj(fft.rfft2(defocus_kernel(radius, alias).astype(np.float64), shape))

"""Blur along a line: a camera shaken in one direction, or falling snow."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neotta.data.base import Image
from neotta.data.corruptions.draws import Draws


def motion_blur(image: Image, draws: Draws, radius: float, sigma: float) -> Image:
    """Blur along a random direction, between 45 degrees up and 45 degrees down."""
    return motion_blur_along(image, radius, sigma, float(draws.uniform(-45, 45)))


def motion_blur_along(image: NDArray[np.uint8], radius: float, sigma: float, angle: float) -> NDArray[np.uint8]:
    """Blur along one direction with a one-sided kernel, which also displaces the content.

    Args:
        image: (H, W) or (H, W, C) uint8.
        radius: The kernel has 2 * ceil(radius) + 1 taps.
        sigma: Standard deviation of the half Gaussian, in pixels.
        angle: In degrees; the y axis points down.
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

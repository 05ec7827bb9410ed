"""Snow, fog, and frost on the window."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from neotta.data.base import Image
from neotta.data.corruptions.blurs import clipped_zoom, motion_blur_along
from neotta.data.corruptions.draws import Draws
from neotta.data.corruptions.filters import fractal, to_bytes
from neotta.data.corruptions.frost import Textures

LUMA = np.array([0.299, 0.587, 0.114], np.float32)


def snow(
    image: Image,
    draws: Draws,
    mean: float,
    deviation: float,
    zoom: float,
    threshold: float,
    radius: float,
    sigma: float,
    keep: float,
) -> Image:
    """Falling flakes over a whitened picture. Draws the flakes, then the direction of their fall.

    Args:
        image: (H, W, 3).
        draws: Where the random numbers come from.
        mean: Of the normal numbers from which flakes are made.
        deviation: Their standard deviation.
        zoom: Size of a flake in pixels.
        threshold: Numbers below it are no flake.
        radius: Of the motion blur of the flakes.
        sigma: Of the motion blur of the flakes.
        keep: How much of the picture is not whitened.
    """
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
    """Ice on the window: a random part of a random texture is added. Draws the texture, the row, the column.

    Args:
        image: (H, W, 3).
        draws: Where the random numbers come from.
        textures: Pictures of frost.
        keep: Weight of the image.
        strength: Weight of the frost.
    """
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

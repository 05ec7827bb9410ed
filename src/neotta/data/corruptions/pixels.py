"""Noise, brightness, contrast and saturation: what happens to each pixel on its own."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neotta.data.base import Image
from neotta.data.corruptions.common import Draws, to_bytes

Array = NDArray[Any]


def gaussian_noise(image: Image, draws: Draws, sigma: float) -> Image:
    """Add normal noise of standard deviation `sigma` (the image being 0..1)."""
    noise = draws.normal(image.shape)
    noise *= 255 * sigma
    noise += image
    return to_bytes(noise, 255)


def shot_noise(image: Image, draws: Draws, photons: float) -> Image:
    """Count photons: Poisson of the brightness, `photons` being what white receives on average."""
    rate = (np.arange(256) / 255 * photons).take(image)
    return to_bytes(draws.poisson(rate) / photons)


def impulse_noise(image: Image, draws: Draws, amount: float) -> Image:
    """Salt and pepper: a share `amount` of the values becomes 0 or 255, the others stay exactly."""
    hit = draws.uniform(0, 1, image.shape) <= amount
    salt = draws.uniform(0, 1, image.shape) <= 0.5
    return np.where(hit, np.where(salt, np.uint8(255), np.uint8(0)), image)


def speckle_noise(image: Image, draws: Draws, sigma: float) -> Image:
    """Add normal noise proportional to the brightness."""
    noise = draws.normal(image.shape)
    noise *= sigma
    noise += 1
    noise *= image
    return to_bytes(noise, 255)


LEVELS = np.arange(256) / 255


def brightness(image: Image, shift: float) -> Image:
    """Raise the value of HSV by `shift`, which multiplies each pixel; black becomes grey.

    A byte of the result depends on the byte and the pixel's largest byte only: a table of all pairs has it.
    Only where the product is a whole number, the rounding inside the HSV formulas decides between two levels.
    """
    table, whole = _brightness_table(shift)
    largest = np.maximum(np.maximum(image[..., 0], image[..., 1]), image[..., 2])
    index = (largest.astype(np.uint16) << 8)[..., None] | image
    result = table.take(index)
    undecided = whole.take(index).any(axis=2)
    hue, saturation, value = rgb_to_hsv(image[undecided])
    result[undecided] = hsv_to_rgb(hue, saturation, np.clip(value + shift, 0, 1))
    return result


@lru_cache(maxsize=16)
def _brightness_table(shift: float) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """At 256 * largest + byte: the new byte, and whether it is a whole number before truncation."""
    largest = np.maximum(LEVELS[:, None], LEVELS)  # pairs with a byte above the largest do not occur
    raised = np.clip(LEVELS[:, None] + shift, 0, 1)
    share = np.divide(LEVELS, largest, out=np.ones_like(largest), where=largest > 0)
    exact = 255 * raised * share
    ends = (share == 0) | (share == 1)  # smallest 0 or largest: no rounding to doubt
    return to_bytes(raised * share).reshape(-1), ((np.abs(exact - np.rint(exact)) < 1e-9) & ~ends).reshape(-1)


def contrast(image: Image, factor: float) -> Image:
    """Pull every channel towards its mean over the picture."""
    mean = image.mean(axis=(0, 1)) / 255
    result = np.empty_like(image)
    for channel in range(3):
        table = to_bytes((LEVELS - mean[channel]) * factor + mean[channel])
        result[..., channel] = table.take(image[..., channel])
    return result


def saturate(image: Image, factor: float, shift: float) -> Image:
    """Change the saturation of HSV to `factor * S + shift`; grey counts as red, so that a shift tints it."""
    hue, saturation, value = rgb_to_hsv(image.reshape(-1, 3))
    return hsv_to_rgb(hue, np.clip(saturation * factor + shift, 0, 1), value).reshape(image.shape)


def rgb_to_hsv(pixels: NDArray[np.uint8]) -> tuple[Array, Array, Array]:
    """Hue as a position 0..6 on the circle red, green, blue; saturation and value 0..1; each (N,) float64."""
    red, green, blue = LEVELS.take(pixels.T)
    value = np.maximum(np.maximum(red, green), blue)
    spread = value - np.minimum(np.minimum(red, green), blue)
    coloured = spread > 0
    saturation = np.divide(spread, value, out=np.zeros_like(value), where=coloured)
    # Of two equal largest channels the last one counts.
    numerator = np.where(blue == value, red - green, np.where(green == value, blue - red, green - blue))
    sector = np.where(blue == value, 4.0, np.where(green == value, 2.0, 0.0))
    hue = sector + np.divide(numerator, spread, out=np.zeros_like(value), where=coloured)
    hue = np.where(coloured, (hue / 6) % 1, 0)
    return hue * 6, saturation, value


def hsv_to_rgb(hue: Array, saturation: Array, value: Array) -> NDArray[np.uint8]:
    """The inverse of `rgb_to_hsv`, truncated to bytes, (N, 3)."""
    sector = np.floor(hue)
    part = hue - sector
    low = value * (1 - saturation)
    falling = value * (1 - part * saturation)
    rising = value * (1 - (1 - part) * saturation)
    choices = (value, rising, low, falling)
    sector = sector.astype(np.intp) % 6
    pixels = np.empty((len(value), 3), np.uint8)
    for channel, order in enumerate(_SECTORS):
        pixels[:, channel] = to_bytes(np.choose(order.take(sector), choices))
    return pixels


_SECTORS = np.array(
    [
        [0, 3, 2, 2, 1, 0],
        [1, 0, 0, 3, 2, 2],
        [2, 2, 1, 0, 0, 3],
    ]
)
"""For red, green and blue in each sixth of the circle: 0 value, 1 rising, 2 low, 3 falling."""

"""Sensor noise: gaussian, shot, impulse, speckle. Every channel of every pixel is drawn independently."""

from __future__ import annotations

import numpy as np

from neotta.data.base import Image
from neotta.data.corruptions.draws import Draws
from neotta.data.corruptions.filters import to_bytes


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

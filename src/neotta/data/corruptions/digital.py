"""Pixelation, JPEG compression and elastic distortion."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neotta.data.base import Image
from neotta.data.corruptions.common import (
    Draws,
    bilinear,
    fold_mirror,
    fold_reflect,
    gaussian,
    reflecting_gaussian,
    to_bytes,
)

Array = NDArray[Any]


def pixelate(image: Image, scale: float) -> Image:
    """Shrink by averaging and enlarge again, so that square pixels show."""
    from PIL import Image as Pillow

    height, width = image.shape[:2]
    small = (max(1, int(width * scale)), max(1, int(height * scale)))
    box = Pillow.Resampling.BOX
    return np.array(Pillow.fromarray(image).resize(small, box).resize((width, height), box))


def jpeg_compression(image: Image, quality: int) -> Image:
    """Compress as JPEG, with half the resolution of colour, and decode."""
    from PIL import Image as Pillow

    buffer = io.BytesIO()
    Pillow.fromarray(image).save(buffer, "JPEG", quality=quality)
    return np.array(Pillow.open(buffer))


TRUNCATE = 3.0
"""The smoothing of the fields reaches so many standard deviations."""

Field = NDArray[np.float32]


def elastic_transform(image: Image, draws: Draws, alpha: float, sigma: float, jitter: float) -> Image:
    """Shear and displace. Draws the jitter of three points, then the fields dx and dy.

    Args:
        image: (H, W, 3).
        draws: Where the random numbers come from.
        alpha: Strength of the displacement.
        sigma: Smoothness of the displacement, in pixels.
        jitter: The three points that define the shear move by up to so many pixels.
    """
    height, width = image.shape[:2]
    pixels = np.zeros((height, width, 4), np.float32)
    pixels[..., :3] = image
    row, column = np.arange(height, dtype=np.float32)[:, None], np.arange(width, dtype=np.float32)

    x, y = _affine_positions(height, width, draws.uniform(-jitter, jitter, (3, 2)), row, column)
    sheared = bilinear(pixels, fold_mirror(y, height), fold_mirror(x, width))

    dx = _displacement(draws.uniform(-1, 1, (height, width)), alpha, sigma)
    dy = _displacement(draws.uniform(-1, 1, (height, width)), alpha, sigma)
    if alpha:
        sheared = bilinear(sheared, fold_reflect(row + dy, height), fold_reflect(column + dx, width))
    return to_bytes(sheared[..., :3], 255)


def _affine_positions(height: int, width: int, moves: Array, row: Field, column: Field) -> tuple[Field, Field]:
    """Where each output pixel comes from, under the affine map that moves three points by `moves`, (3, 2).

    Returns:
        x and y of the source, each (H, W) float32.
    """
    centre = np.array([width // 2, height // 2])
    arm = max(1, min(height, width) // 3)  # at least 1: coinciding points define no map
    points = (centre + arm * np.array([[1, 1], [1, -1], [-1, -1]])).astype(np.float32)
    moved = points + moves.astype(np.float32)
    homogeneous = np.column_stack([moved, np.ones(3)]).astype(np.float64)
    # Least squares instead of a solution: a picture of a few pixels may move its points onto one line.
    back = np.linalg.lstsq(homogeneous, points.astype(np.float64), rcond=None)[0].astype(np.float32)
    x = back[0, 0] * column + (back[1, 0] * row + back[2, 0])
    y = back[0, 1] * column + (back[1, 1] * row + back[2, 1])
    return x, y


def _displacement(field: Array, alpha: float, sigma: float) -> Field:
    """Smooth a field of uniform numbers, (H, W), and scale it to pixels."""
    height, width = field.shape
    field = field.astype(np.float32, copy=False)
    if int(TRUNCATE * sigma + 0.5) > 16:  # a wide filter is faster as two matrix products
        rows = reflecting_gaussian(height, sigma, TRUNCATE)
        columns = reflecting_gaussian(width, sigma, TRUNCATE)
        field = rows @ field @ columns.T
    else:
        field = gaussian(field, sigma, "reflect", TRUNCATE)
    return field * np.float32(alpha)

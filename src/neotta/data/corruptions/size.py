"""The size of the pictures to be corrupted."""

from __future__ import annotations

import numpy as np

from neotta.data.base import Image

SIDE = {"imagenet": 224, "tiny": 64, "cifar": 32}
"""The side of the square pictures each preset was published for."""


def prepare(image: Image, preset: str) -> Image:
    """Bring a picture to the size its preset was published for.

    "imagenet": the shorter side becomes 256 pixels, and the middle 224 x 224 are cut out. The others squeeze
    the whole picture into their square.
    """
    from PIL import Image as Pillow

    side = SIDE[preset]
    picture, bilinear = Pillow.fromarray(image), Pillow.Resampling.BILINEAR
    if preset != "imagenet":
        return np.asarray(picture.resize((side, side), bilinear))
    shorter = min(picture.size)
    width, height = (256 * length // shorter for length in picture.size)
    left, top = round((width - side) / 2), round((height - side) / 2)
    box = (left, top, left + side, top + side)
    return np.asarray(picture.resize((width, height), bilinear).crop(box))

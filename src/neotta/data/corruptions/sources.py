"""The pictures to be corrupted: which there are in a folder, how they are read, and their size."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from neotta.data.base import Image
from neotta.errors import DataError

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm"})
"""Files with other endings are no pictures (checksums, licences, notes)."""

SIDE = {"imagenet": 224, "tiny": 64, "cifar": 32}
"""The side of the square pictures each preset was published for."""


def list_images(folder: Path) -> list[str]:
    """The visible images in `folder` and below: sorted relative paths with forward slashes."""
    return sorted(path.relative_to(folder).as_posix() for path in _walk(folder))


def _walk(folder: Path) -> Iterator[Path]:
    def refuse(error: OSError) -> None:
        raise DataError(f"folder {str(error.filename)!r} cannot be listed: {error.strerror}") from error

    for place, folders, files in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            if not name.startswith(".") and Path(name).suffix.lower() in SUFFIXES:
                yield Path(place, name)


def decode(file: Path) -> Image:
    """Read one image file: (H, W, 3) uint8 RGB, upright.

    Raises:
        DataError: The file is truncated, no image, or too large to be one.
    """
    from PIL import Image as Pillow
    from PIL import ImageOps

    try:
        with Pillow.open(file) as picture:
            return np.asarray(ImageOps.exif_transpose(picture).convert("RGB"))
    except (OSError, ValueError, SyntaxError, Pillow.DecompressionBombError) as error:
        raise DataError(f"image {str(file)!r} cannot be read: {error}") from error


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

"""From the bytes of an image file to an upright RGB array, whatever the file's mode.

| in the file | in the array |
|---|---|
| grey, two-level, palette, CMYK, YCbCr | converted to RGB |
| transparency (alpha, colour key, palette) | laid on white, as a page shows it |
| 16-bit grey | divided by 257: white stays white |
| floating point in 0..1 | times 255 |
| EXIF orientation | applied |
| several frames | the first |

Whatever else is in the file, the answer is an image or a `DataError`, and Pillow's warnings stay inside.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image as pil
from PIL import ImageOps, UnidentifiedImageError

from neotta.data.base import Image
from neotta.errors import DataError

MAX_PIXELS = 89_478_485
"""Larger images are rejected: a quarter of a gigabyte in RGB, where Pillow too begins to suspect a bomb."""

# Photographs' formats only. Pillow knows more; one of them (EPS) would start another program on the file.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "JPEG2000", "AVIF")

SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"}
    | {".ppm", ".pgm", ".pnm", ".jp2", ".avif"}
)
"""How the names of such files end; others in a folder of images are something else (checksums, licences, notes)."""

Encoded = bytes | str | os.PathLike[str]
"""An image file: its bytes, or its path."""

READS = 1000
"""Reads that any image may take, with one more for each 512 bytes of the file. Pillow walks through the blocks of a
file in Python, one read or more for each: real images have blocks of some kilobytes."""

_STRIP = 2**20  # pixels that are converted together
_TEXT = 2**16  # bytes of numbers that Pillow reads in Python

_IGNORE_PILLOW = ("ignore", None, Warning, re.compile(r"PIL\."), 0)


class Header(NamedTuple):
    """What an image file says of itself before its pixels are decoded."""

    format: str
    mode: str
    width: int
    height: int


def decode(source: Encoded, *, max_pixels: int = MAX_PIXELS) -> Image:
    """Decode one image file.

    Args:
        source: The file's bytes, or its path.
        max_pixels: Images with more pixels than this are rejected.

    Returns:
        The image, (H, W, 3) uint8 RGB, upright, writable.

    Raises:
        DataError: The file is missing, truncated, not an image, of a mode that has no RGB equivalent, or too large.
    """
    with _opened(source, max_pixels) as image:
        image.load()
        with contextlib.suppress(Exception):  # a broken EXIF block does not spoil the picture
            ImageOps.exif_transpose(image, in_place=True)
        pixels = np.empty((image.height, image.width, 3), np.uint8)
        rows = max(1, _STRIP // image.width)
        for top in range(0, image.height, rows):  # several copies of a strip take less than one of the image
            strip = image.crop((0, top, image.width, min(top + rows, image.height)))
            pixels[top : top + rows] = np.asarray(_rgb(strip))
        return pixels


def probe(source: Encoded, *, max_pixels: int = MAX_PIXELS) -> Header:
    """Read the header of an image file without its pixels; a truncated file may pass."""
    with _opened(source, max_pixels) as image:
        return Header(image.format or "?", image.mode, image.width, image.height)


@contextlib.contextmanager
def _opened(source: Encoded, max_pixels: int) -> Iterator[pil.Image]:
    """Open an image, check its size, and turn whatever goes wrong with it into a `DataError`."""
    name = "image" if isinstance(source, bytes) else f"image {os.fspath(source)!r}"
    try:
        with _file(source) as file, _quiet(), pil.open(file, formats=_formats()) as image:
            if image.width * image.height > max_pixels:
                raise DataError(
                    f"{name} has {image.width} x {image.height} pixels, more than the limit of {max_pixels:,}"
                    ": a decompression bomb, or an image to be made smaller first"
                )
            if isinstance(source, bytes) and len(source) > _TEXT and image.tile[0][0] in ("ppm", "ppm_plain"):
                raise DataError("image is a large PPM file of numbers, which take long to read: save it as PNG")
            yield image
    except DataError:
        raise
    except pil.DecompressionBombError as error:
        raise DataError(f"{name} has more pixels than the limit of {max_pixels:,}: {error}") from error
    except UnidentifiedImageError as error:
        raise DataError(f"{name} is not an image of a known format ({', '.join(_formats())})") from error
    except Exception as error:  # on broken bytes Pillow raises nearly every error there is
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise DataError(f"{name} cannot be read: {reason or type(error).__name__}") from error


def _file(source: Encoded) -> BinaryIO:
    return _Counted(source) if isinstance(source, bytes) else Path(source).open("rb")


class _Counted(io.BytesIO):
    """The bytes of an image, which can be read a number of times that grows with them."""

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self.left = READS + len(content) // 512

    def read(self, size: int | None = -1) -> bytes:
        self.left -= 1
        if self.left < 0:
            raise DataError("image has too many blocks for its size")
        return super().read(size)


@functools.cache
def _formats() -> tuple[str, ...]:
    """The formats of `FORMATS` that the installed Pillow can read."""
    pil.init()
    return tuple(name for name in FORMATS if name in pil.OPEN)


def _rgb(image: pil.Image) -> pil.Image:
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode == "F" or image.mode.startswith("I"):
        return pil.fromarray(_eight_bit(np.asarray(image), image.mode)).convert("RGB")
    if _transparent(image):
        seen = image.convert("RGBA")
        page = pil.new("RGBA", seen.size, "white")
        return pil.alpha_composite(page, seen).convert("RGB")
    return image.convert("RGB")


def _transparent(image: pil.Image) -> bool:
    if image.mode == "P" and image.palette is not None and image.palette.mode == "RGBA":
        return True
    return image.mode in ("LA", "PA", "RGBA", "RGBa") or "transparency" in image.info


def _eight_bit(grey: NDArray[np.generic], mode: str) -> Image:
    """Scale deep grey values, (H, W), to 0..255; values whose white is unknown raise an error."""
    values = grey.astype(np.float64)
    white = 1.0 if mode == "F" else 65535.0
    low, high = values.min(), values.max()
    if not (low >= 0 and high <= white):  # catches NaN as well
        raise DataError(
            f"image of mode {mode!r} has values from {low:g} to {high:g}, where 0 to {white:g} was expected: "
            "save it with 8 or 16 bits"
        )
    return np.rint(values * (255 / white)).astype(np.uint8)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence Pillow's warnings.

    `warnings.catch_warnings` would show every other warning of the program anew after each image, and would
    leave wrong filters behind when threads overlap.
    """
    filters = cast("list[object]", warnings.filters)
    filters.insert(0, _IGNORE_PILLOW)
    try:
        yield
    finally:
        filters.remove(_IGNORE_PILLOW)

"""What processing does to the pixels: too few of them, or too strong a compression."""

from __future__ import annotations

import io

import numpy as np

from neotta.data.base import Image


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

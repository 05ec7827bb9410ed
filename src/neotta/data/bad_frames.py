"""Frames that show nothing: black, white, or noise."""

from __future__ import annotations

import numpy as np

from neotta.data.base import Image, ImageDataset

DOMAIN = "bad frames"
COUNT = 48


class BadFrames(ImageDataset):
    """Unlabelled frames of a camera that is covered, blinded or broken: a third each black, white and noise.

    Args:
        height: Of the images.
        width: Of the images.
    """

    def __init__(self, height: int, width: int) -> None:
        self.domain = f"{DOMAIN} {height}x{width}"
        self.ids = [f"{number:02d}" for number in range(COUNT)]
        self._shape = (height, width, 3)
        self.in_memory = True

    def read(self, index: int) -> Image:
        """Make one frame, (H, W, 3) uint8; the same each time."""
        if index % 3 < 2:
            return np.full(self._shape, 255 * (index % 3), dtype=np.uint8)
        return np.random.RandomState(index).randint(0, 256, self._shape).astype(np.uint8)

"""The pictures of frost that `frost` draws from: grown ones, or those of a folder, in the size needed."""

from __future__ import annotations

import hashlib
import math
import os
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neotta.data.base import Image
from neotta.data.corruptions.crystals import RECIPES, grown
from neotta.data.corruptions.filters import CACHED_SIDE
from neotta.data.decode import SUFFIXES, decode
from neotta.errors import DataError


@dataclass(frozen=True)
class Textures:
    """Pictures of frost.

    Attributes:
        sources: For each texture its file, or the number of the recipe it is grown by.
        scale: By how much each is shrunk before use.
    """

    sources: tuple[str | int, ...]
    scale: float = 1.0

    @classmethod
    def of_folder(cls, folder: str | os.PathLike[str]) -> Textures:
        """All images of a folder, in the order of their names.

        Each is drawn equally often. The public scripts come with six pictures and draw from the first five: to draw
        as they do, leave the sixth out of the folder.

        Raises:
            DataError: The folder does not exist or holds no image.
        """
        return _folder(os.fspath(folder))

    def __len__(self) -> int:
        return len(self.sources)

    def digest(self) -> str:
        """A hash of the files: another for other pictures, the same wherever they lie."""
        digest = hashlib.sha256()
        for file in self.sources:
            digest.update(hashlib.sha256(Path(str(file)).read_bytes()).digest())
        return digest.hexdigest()

    def scaled(self, scale: float) -> Textures:
        """The same pictures at another scale."""
        return replace(self, scale=scale)

    def covering(self, number: int, height: int, width: int) -> Image:
        """One texture, enlarged where it would not cover a picture of this size."""
        texture = _scaled(self.sources[number], self.scale)
        if texture.shape[0] >= height and texture.shape[1] >= width:
            return texture
        enlarge = _enlarged if max(height, width) <= CACHED_SIDE else _enlarged.__wrapped__
        return enlarge(self.sources[number], self.scale, height, width)


GROWN = Textures(tuple(range(len(RECIPES))))
"""The textures that need no files."""


@lru_cache(maxsize=8)
def _folder(folder: str) -> Textures:
    if not Path(folder).is_dir():
        raise DataError(f"textures: {folder!r} is not a folder")
    files = (file for file in Path(folder).iterdir() if file.suffix.lower() in SUFFIXES and file.name[0] != ".")
    found = tuple(sorted(str(file) for file in files if file.is_file()))
    if not found:
        raise DataError(f"textures: no image ({', '.join(sorted(SUFFIXES))}) in {folder!r}")
    return Textures(found)


@lru_cache(maxsize=16)
def _scaled(source: str | int, scale: float) -> Image:
    """Shrink without averaging, as the public scripts do: the crystals stay crisp."""
    texture = grown(source) if isinstance(source, int) else _load(source)
    if scale == 1:
        return texture
    height, width = max(1, round(texture.shape[0] * scale)), max(1, round(texture.shape[1] * scale))
    down, across = _positions(texture.shape[0], height, scale), _positions(texture.shape[1], width, scale)
    shrunk = _interpolate(_interpolate(texture.astype(np.float32), *down).swapaxes(0, 1), *across)
    return np.asarray(np.rint(shrunk.swapaxes(0, 1)), np.uint8)


def _positions(size: int, count: int, scale: float) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
    """Input pixel and share of the next one for each of `count` output pixels, centres on centres."""
    position = np.clip((np.arange(count) + 0.5) / scale - 0.5, 0, size - 1)
    lower = np.minimum(position.astype(np.intp), max(size - 2, 0))
    return lower, (position - lower).astype(np.float32)


def _interpolate(rows: NDArray[Any], lower: NDArray[np.intp], share: NDArray[np.float32]) -> NDArray[Any]:
    """Linear interpolation along the first axis of (H, W, 3)."""
    first, second = rows[lower], rows[np.minimum(lower + 1, len(rows) - 1)]
    return np.asarray(first + (second - first) * share[:, None, None])


@lru_cache(maxsize=8)
def _enlarged(source: str | int, scale: float, height: int, width: int) -> Image:
    from PIL import Image as Pillow

    texture = _scaled(source, scale)
    factor = max(height / texture.shape[0], width / texture.shape[1])
    size = (math.ceil(texture.shape[1] * factor), math.ceil(texture.shape[0] * factor))
    size = (max(size[0], width), max(size[1], height))  # the product may fall a hair short
    return np.asarray(Pillow.fromarray(texture).resize(size, Pillow.Resampling.BICUBIC))


def _load(file: str) -> Image:
    try:
        return decode(file)
    except DataError as error:
        raise DataError(f"textures: {error}") from error

"""Frost: a random part of a texture, grown or from a folder of pictures, over the picture."""

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
from neotta.data.corruptions.common import CACHED_SIDE, Draws, draws_for, fractal, gaussian
from neotta.data.decode import SUFFIXES, decode
from neotta.errors import DataError

SIDE = 512
SIXTH = np.float32(np.pi / 3)

Plane = NDArray[np.float32]


@dataclass(frozen=True)
class Recipe:
    """How one texture looks."""

    colour: tuple[int, int, int]  # mean red, green and blue
    contrast: float  # standard deviation of the grey
    crystals: int  # along one side of the texture
    clouds: float  # share of the slow variation of thickness in the contrast


RECIPES = (
    Recipe((96, 144, 160), 17, 7, 0.8),
    Recipe((200, 206, 215), 21, 5, 0.9),
    Recipe((194, 202, 211), 24, 9, 0.9),
    Recipe((139, 153, 165), 29, 6, 0.7),
    Recipe((113, 124, 136), 42, 8, 0.9),
)


@lru_cache(maxsize=len(RECIPES))
def grown(number: int) -> Image:
    """Grow one texture, (512, 512, 3), the same in every process; it takes about a tenth of a second."""
    recipe = RECIPES[number]
    draws = draws_for(0, f"texture {number}", "frost", 0)
    cloud = fractal(draws, SIDE, 1.8)
    grey = _standard(_needles(draws, recipe)) + recipe.clouds * _standard(cloud)
    grey = np.tanh(_standard(grey) * np.float32(0.6))  # ice has neither black holes nor burnt-out glare
    relief = (_standard(grey) * np.float32(recipe.contrast))[..., None]
    texture: Image = np.clip(relief + np.array(recipe.colour, np.float32), 0, 255).astype(np.uint8)
    texture.setflags(write=False)  # shared by all callers
    return texture


def _standard(plane: Plane) -> Plane:
    return np.asarray((plane - plane.mean()) / plane.std())


def _needles(draws: Draws, recipe: Recipe) -> Plane:
    """Bright arms and the needles between them, (512, 512)."""
    away_x, away_y, turn = _nearest_nucleus(draws, recipe.crystals)
    angle = np.arctan2(away_y, away_x) - turn
    arm = np.rint(angle / SIXTH) * SIXTH
    off = angle - arm
    spine = np.exp(-np.abs(np.hypot(away_x, away_y) * np.sin(off)) / np.float32(1.6))
    streaks = _streaks(draws, turn + arm + np.sign(off) * SIXTH)
    return gaussian(streaks + np.float32(1.5) * spine, 0.6)


def _nearest_nucleus(draws: Draws, crystals: int) -> tuple[Plane, Plane, Plane]:
    """For every pixel: x and y from its crystal's nucleus, and how the crystal is turned; each (512, 512)."""
    pitch = SIDE / crystals
    line = np.arange(SIDE, dtype=np.float32) / np.float32(pitch)
    bend = [(fractal(draws, SIDE, 1.9) - np.float32(0.5)) * np.float32(1.2) for _ in range(2)]
    x, y = line + bend[0], line[:, None] + bend[1]
    column, row = np.floor(x).astype(np.intp), np.floor(y).astype(np.intp)
    x, y = x - column.astype(np.float32), y - row.astype(np.float32)
    # Positions inside the cells of the grid, which repeats, with one cell around it for the neighbours.
    jitter_x, jitter_y, turn = (np.tile(draws.uniform(0, 1, (crystals, crystals)), (3, 3)) for _ in range(3))
    cell = (row + crystals) * (3 * crystals) + column + crystals
    best = np.full((SIDE, SIDE), np.inf, np.float32)
    best_x, best_y, best_cell = np.empty_like(best), np.empty_like(best), np.empty_like(cell)
    for down in (-1, 0, 1):
        for right in (-1, 0, 1):
            other = cell + (down * 3 * crystals + right)
            away_x, away_y = x - jitter_x.take(other) - right, y - jitter_y.take(other) - down
            distance = away_x**2 + away_y**2
            nearer = distance < best
            for nearest, new in ((best, distance), (best_x, away_x), (best_y, away_y), (best_cell, other)):
                np.copyto(nearest, new, where=nearer)
    scale = np.float32(pitch)
    return best_x * scale, best_y * scale, turn.take(best_cell) * SIXTH


def _streaks(draws: Draws, direction: Plane, reach: int = 9) -> Plane:
    """White noise drawn out along a direction given per pixel in radians, (512, 512)."""
    noise = draws.normal((SIDE, SIDE)).astype(np.float32)
    line = np.arange(SIDE, dtype=np.float32) + np.float32(SIDE)
    across, down = np.cos(direction), np.sin(direction)
    total = np.zeros((SIDE, SIDE), np.float32)
    for step in range(-reach, reach + 1):
        column = (line + step * across).astype(np.int32) % SIDE
        row = (line[:, None] + step * down).astype(np.int32) % SIDE
        total += noise.take(row * SIDE + column)
    return total / np.float32(np.sqrt(2 * reach + 1))


@dataclass(frozen=True)
class Textures:
    """Pictures of frost."""

    sources: tuple[str | int, ...]  # files, or numbers of the recipes they are grown by
    scale: float = 1.0  # by how much each is shrunk before use

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
        """A hash of the files' content, wherever they are."""
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
    paths = tuple(sorted(str(file) for file in files if file.is_file()))
    if not paths:
        raise DataError(f"textures: no image ({', '.join(sorted(SUFFIXES))}) in {folder!r}")
    return Textures(paths)


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

"""Frost that is grown instead of photographed.

A texture covers a pane with six-armed crystals: nuclei on a jittered grid, their cells bent by a cloud,
needles that leave each arm at 60 degrees, and ice of varying thickness over all of it. Colours and contrast
of the five recipes are close to those of the photographs that the published pictures were made with.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from neotta.data.base import Image
from neotta.data.corruptions.draws import Draws, draws_for
from neotta.data.corruptions.filters import gaussian
from neotta.data.corruptions.fractal import fractal

SIDE = 512
SIXTH = np.float32(np.pi / 3)

Plane = NDArray[np.float32]


@dataclass(frozen=True)
class Recipe:
    """How one texture looks.

    Attributes:
        colour: Mean red, green and blue.
        contrast: Standard deviation of the grey.
        crystals: Along one side of the texture.
        clouds: Share of the slow variation of thickness in the contrast.
    """

    colour: tuple[int, int, int]
    contrast: float
    crystals: int
    clouds: float


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
            for kept, new in ((best, distance), (best_x, away_x), (best_y, away_y), (best_cell, other)):
                np.copyto(kept, new, where=nearer)
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

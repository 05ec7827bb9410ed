"""Glass blur: pixels copied from near by, between two small Gaussian blurs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from neotta.data.base import Image
from neotta.data.corruptions.draws import Draws
from neotta.data.corruptions.filters import gaussian, to_bytes

Index = NDArray[np.intp]


def glass_blur(image: Image, draws: Draws, sigma: float, reach: int, sweeps: int) -> Image:
    """Blur, let every pixel take the value of a random neighbour `sweeps` times, and blur again."""
    height, width = image.shape[:2]
    soft = to_bytes(gaussian(image / 255, sigma))
    source = np.arange(height * width)
    rows, columns = _targets(height, reach), _targets(width, reach)
    offsets = draws.integers(-reach, reach, (sweeps, len(rows), len(columns), 2))
    for dx, dy in offsets.transpose(0, 3, 1, 2):
        source = source[_sweep(height, width, rows, columns, dy, dx)]
    shuffled = soft.reshape(-1, 3).take(source, axis=0).reshape(soft.shape)
    return to_bytes(gaussian(shuffled / 255, sigma))


def _targets(size: int, reach: int) -> Index:
    """Rows (or columns) that receive a value, in the order of the visit: from the last to the first."""
    return np.arange(size - reach, reach, -1)


def _sweep(height: int, width: int, rows: Index, columns: Index, dy: NDArray[Any], dx: NDArray[Any]) -> Index:
    """From which pixel of the picture before a sweep each pixel after it comes, (H * W,).

    The visits are sequential and each *copies* its neighbour: a neighbour visited earlier in the same sweep
    (below, or to the right in the same row) hands on the value it received itself. All chains are followed
    at once, each round doubling the stride, so that a few rounds replace the loop over pixels.

    Args:
        height: Of the picture.
        width: Of the picture.
        rows: The targets' rows in the order of the visit, (R,).
        columns: The targets' columns in the order of the visit, (C,).
        dy: Vertical offset of each target's neighbour, (R, C).
        dx: Horizontal offset, (R, C).
    """
    target = rows[:, None] * width + columns
    neighbour = target + dy * width + dx
    taken = np.arange(height * width)
    taken[target] = neighbour

    visited = np.zeros(height * width, bool)
    visited[target] = True
    chained = (neighbour > target) & visited[neighbour]
    if not chained.any():
        return taken
    root = np.arange(height * width)
    root[target] = np.where(chained, neighbour, target)
    while True:
        further = root[root]
        if np.array_equal(further, root):
            return taken[root]
        root = further

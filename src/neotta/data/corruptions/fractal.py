"""A cloud: the fractal map of fog, also used for frost."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from neotta.data.corruptions.draws import Draws


def fractal(draws: Draws, size: int, decay: float) -> NDArray[np.float32]:
    """A cloud that tiles the plane, by the diamond-square method; values fill [0, 1].

    Args:
        draws: One block of uniform numbers each for the centres, row edges and column edges of every level.
        size: A power of two, at least 2.
        decay: The noise falls by its square from level to level.

    Returns:
        The map, (size, size) float32.
    """
    cloud = np.zeros((size, size), np.float32)
    step, wobble = size, 100.0

    def noisy(four: NDArray[Any]) -> NDArray[Any]:
        return four / 4 + wobble * draws.uniform(-wobble, wobble, four.shape)

    while step >= 2:
        half = step // 2
        corners = cloud[::step, ::step]
        below, right = np.roll(corners, -1, 0), np.roll(corners, -1, 1)
        centres = noisy(corners + below + right + np.roll(below, -1, 1))
        cloud[half::step, half::step] = centres
        cloud[::step, half::step] = noisy(centres + np.roll(centres, 1, 0) + corners + right)
        cloud[half::step, ::step] = noisy(centres + np.roll(centres, 1, 1) + corners + below)
        step, wobble = half, wobble / decay
    cloud -= cloud.min()
    cloud /= cloud.max()
    return cloud

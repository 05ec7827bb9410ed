"""The random numbers of the public scripts, for comparing pictures with theirs."""

from __future__ import annotations

import numpy as np

from neotta.data.corruptions.common import Draws


class LegacyDraws(Draws):
    """Draws from NumPy's legacy generator, float64: those of the public scripts after `numpy.random.seed`."""

    def __init__(self, seed: int) -> None:
        self.state = np.random.RandomState(seed)

    def normal(self, shape: tuple[int, ...]):
        return self.state.standard_normal(shape)

    def uniform(self, low: float, high: float, shape: tuple[int, ...] = ()):
        return np.asarray(self.state.uniform(low, high, shape))

    def integers(self, low: int, high: int, shape: tuple[int, ...] = ()):
        return np.asarray(self.state.randint(low, high, shape))

    def poisson(self, rate):
        return self.state.poisson(rate)

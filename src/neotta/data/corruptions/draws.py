"""Where the random numbers of a corruption come from.

A corruption never touches a global generator: it asks a `Draws` object. The draws of one picture depend on
(seed, image id, corruption, severity) and the version of NumPy: neither the number of workers nor the order
of the pictures matters. The pictures depend on the versions of SciPy and Pillow as well.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Draws:
    """A source of random numbers; every method draws one block, in C order, in float32 where that is faster."""

    def __init__(self, generator: np.random.Generator) -> None:
        self.generator = generator

    def normal(self, shape: tuple[int, ...]) -> Array:
        """Standard normal numbers."""
        return self.generator.standard_normal(shape, dtype=np.float32)

    def uniform(self, low: float, high: float, shape: tuple[int, ...] = ()) -> Array:
        """Uniform numbers in [low, high)."""
        block = np.asarray(self.generator.random(shape, dtype=np.float32))
        return np.asarray(block * np.float32(high - low) + np.float32(low))

    def integers(self, low: int, high: int, shape: tuple[int, ...] = ()) -> Array:
        """Uniform integers in {low, ..., high - 1}."""
        return np.asarray(self.generator.integers(low, high, shape))

    def poisson(self, rate: Array) -> Array:
        """One Poisson number per entry of `rate`."""
        return self.generator.poisson(rate)


def draws_for(seed: int, image_id: str, name: str, severity: int) -> Draws:
    """The draws of one picture: a pure function of the four arguments, for one version of NumPy.

    NumPy may change what its generators draw from one version to the next; `corrupt_folder` notes the versions.

    A cryptographic hash, because Python's own `hash` of a string changes from process to process.
    """
    key = f"{seed}/{name}/{severity}/{image_id}".encode("utf-8", "surrogateescape")
    entropy = int.from_bytes(hashlib.blake2b(key, digest_size=16).digest(), "little")
    return Draws(np.random.Generator(np.random.SFC64(entropy)))

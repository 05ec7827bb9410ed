"""Checks of numbers that users pass; NumPy's numbers become Python's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from neotta.errors import OptionError


def whole(name: str, value: Any, least: int, most: int | None = None) -> int:
    """Check that a value is an integer from `least` to `most`."""
    good = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not good or value < least or (most is not None and value > most):
        limits = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise OptionError(f"{name} must be a whole number {limits}, got {value!r}")
    return int(value)


def check_real(name: str, value: Any, least: float) -> None:
    """Check that a value is a finite number of at least `least`."""
    good = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    if not good or not least <= value < math.inf:
        raise OptionError(f"{name} must be a number of at least {least:g}, got {value!r}")


def checked_seed(seed: Any) -> int:
    """Check that a seed is an integer of 64 bits, which is what torch takes."""
    return whole("seed", seed, -(2**63), 2**64 - 1)

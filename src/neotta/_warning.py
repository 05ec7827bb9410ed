"""Warnings that point at the user's line, not at a layer of the network."""

from __future__ import annotations

import sys
import warnings

_PASSED_THROUGH = ("neotta", "torch", "timm", "transformers", "torchvision")


def warn(message: str) -> None:
    """Warn at the nearest caller outside this package and the libraries that call it."""
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in _PASSED_THROUGH:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, RuntimeWarning, stacklevel=level)

"""What makes a model give the results it gives: its weights, how it is built, and code that is not a library's."""

from __future__ import annotations

import hashlib
import inspect

from torch import nn

from neotta.neo.statefile import fingerprint

LIBRARIES = ("torch", "torchvision", "timm", "transformers", "neotta")
"""Packages whose versions are on record; the code of any other module counts by its text."""


def identity(model: nn.Module) -> str:
    """A hash that differs where models may give different results.

    Two models with the same weights differ if a layer has another option (the eps of a norm, say), or if a class that
    is not part of a library was written again.
    """
    parts = [fingerprint(model.state_dict()), repr(model)]
    kinds = {type(module) for module in model.modules()}
    parts += sorted(_source(kind) for kind in kinds if kind.__module__.partition(".")[0] not in LIBRARIES)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _source(kind: type) -> str:
    """The text of a class, or its name where there is none."""
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):
        return f"{kind.__module__}.{kind.__qualname__}"

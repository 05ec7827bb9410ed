"""Test-time adaptation of image classifiers by latent re-centering."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neotta._lazy import lazy
from neotta._version import __version__

if TYPE_CHECKING:
    from neotta.errors import NeottaError

__all__ = ["NeottaError", "__version__"]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "NeottaError": "neotta.errors",
    },
)

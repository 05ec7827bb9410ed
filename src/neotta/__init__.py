"""Test-time adaptation of image classifiers by latent re-centering.

The public names are loaded when they are first used, so that `import neotta` costs nothing and parts that
do not need torch can be used without it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from neotta._version import __version__

if TYPE_CHECKING:
    from neotta.errors import NeottaError as NeottaError

_HOME = {
    "NeottaError": "neotta.errors",
}

__all__ = ["__version__", *sorted(_HOME)]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'neotta' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))

"""Optional packages, imported where they are used."""

from __future__ import annotations

import importlib
from typing import Any

from neotta.errors import MissingExtraError


def need(package: str, purpose: str) -> Any:
    """Import a package of the extra `onnx`, or say how to install it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingExtraError(package, "onnx", purpose) from error

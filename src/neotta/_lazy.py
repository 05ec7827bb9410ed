"""Public names that are imported on first use.

This keeps `import neotta` cheap, and lets the parts that do not need torch work without it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

from neotta._extras import naming_the_extra


def lazy(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make `__getattr__` and `__dir__` for `package`.

    Args:
        package: The package's `__name__`.
        homes: For each public name, the module that defines it (or the submodule itself).
    """

    def getattribute(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with naming_the_extra(f"{package}.{name}"):
            module = importlib.import_module(homes[name])
        value = module if homes[name] == f"{package}.{name}" else getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    def directory() -> list[str]:
        return sorted(set(vars(sys.modules[package])) | set(homes))

    return getattribute, directory

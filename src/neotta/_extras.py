"""Imports on first use, and of optional packages; if one is missing, the error names the extra to install."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from neotta.errors import MissingExtraError

EXTRAS = {
    **dict.fromkeys(
        [
            *("typer", "rich", "timm", "torchvision", "huggingface_hub", "PIL", "scipy", "pandas", "pyarrow"),
            *("matplotlib", "jinja2", "cma", "platformdirs", "pooch", "tomli", "tomli_w"),
        ],
        "lab",
    ),
    "transformers": "hf",
    "ray": "ray",
    "redis": "redis",
    **dict.fromkeys(["onnx", "onnxscript", "onnxruntime"], "onnx"),
    "prometheus_client": "prometheus",
    **dict.fromkeys(["fastapi", "starlette", "uvicorn"], "serve"),
}
"""The extra that installs each optional package."""


def need(package: str, purpose: str) -> Any:
    """Import an optional package or module; `purpose` is what needs it, for the message: "exporting to ONNX"."""
    with naming_the_extra(purpose):
        return importlib.import_module(package)


@contextlib.contextmanager
def naming_the_extra(purpose: str) -> Iterator[None]:
    """Convert the error for a missing optional package into one that names the extra to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        raise MissingExtraError(package, EXTRAS[package], purpose) from error


def lazy(package: str, names: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make `__getattr__` and `__dir__` for `package`, whose public names are imported on first use.

    Args:
        package: The package's `__name__`.
        names: For each module, the public names that it defines, separated by spaces; a module may be one itself.
    """
    homes = {name: module for module, some in names.items() for name in some.split()}

    def getattribute(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with naming_the_extra(f"{package}.{name}"):
            module = importlib.import_module(homes[name])
        value = module if homes[name] == f"{package}.{name}" else getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    return getattribute, lambda: sorted({*vars(sys.modules[package]), *homes})

"""Imports of optional packages; if one is missing, the error names the extra to install."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

from neotta.errors import MissingExtraError

EXTRAS = {
    **dict.fromkeys(
        [
            *("typer", "rich", "timm", "torchvision", "huggingface_hub", "PIL", "scipy", "pandas", "pyarrow"),
            *("matplotlib", "jinja2", "cma", "platformdirs", "yaml", "tomli", "tomli_w"),
        ],
        "lab",
    ),
    "transformers": "hf",
    "ray": "ray",
    **dict.fromkeys(["onnx", "onnxscript", "onnxruntime"], "onnx"),
    "prometheus_client": "prometheus",
    **dict.fromkeys(["starlette", "uvicorn", "httptools", "python_multipart"], "serve"),
    "redis": "redis",
    "tensorboardX": "tensorboard",
    "mlflow": "mlflow",
    "wandb": "wandb",
}
"""The extra that installs each optional package."""


def need(package: str, purpose: str) -> Any:
    """Import an optional package or module.

    Args:
        package: For example `"onnx"` or `"pyarrow.parquet"`.
        purpose: What needs it, as the subject of the message: "exporting to ONNX".

    Raises:
        MissingExtraError: It is not installed.
    """
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

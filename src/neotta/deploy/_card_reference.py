"""A reference as text, in the description of an adaptive ONNX file."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from neotta.errors import ModelLoadError, StateMismatchError
from neotta.neo.reference_file import Reference


def encoded(reference: Reference) -> dict[str, Any]:
    """The arrays as base64 of a safetensors file, and what they belong to."""
    from safetensors.numpy import save

    return {"arrays": base64.b64encode(save(reference.arrays())).decode("ascii"), **reference.about()}


def decoded(entries: Mapping[str, Any]) -> Reference:
    """The reference that `encoded` wrote.

    Raises:
        ModelLoadError: It cannot be read.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        return Reference.of(load(base64.b64decode(entries["arrays"], validate=True)), entries)
    except (KeyError, TypeError, ValueError, SafetensorError, StateMismatchError) as error:
        raise ModelLoadError(f"the reference in the file is damaged: {error}") from error

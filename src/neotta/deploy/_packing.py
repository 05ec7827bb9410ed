"""The state of a rule on logits as one vector, which an ONNX graph takes and returns.

The vector holds all real fields, each minus its initial value: zeros are the state of a new stream.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from neotta.neo.moments import namespace
from neotta.neo.rules import Field

PACKED = "state"


def length(fields: Mapping[str, Field]) -> int:
    """Number of real values."""
    return sum(math.prod(field.shape) for field in fields.values() if field.kind != "count")


def pack(fields: Mapping[str, Field], entries: Mapping[str, Any]) -> Any:
    """Join the real entries of a state into a vector, (S,)."""
    parts = [(entries[name] - field.start).reshape(-1) for name, field in fields.items() if field.kind != "count"]
    return namespace(parts[0]).concatenate(parts)


def unpack(fields: Mapping[str, Field], vector: Any) -> dict[str, Any]:
    """The real entries of a state by name."""
    entries, place = {}, 0
    for name, field in fields.items():
        if field.kind != "count":
            size = math.prod(field.shape)
            entries[name] = vector[place : place + size].reshape(field.shape) + field.start
            place += size
    return entries

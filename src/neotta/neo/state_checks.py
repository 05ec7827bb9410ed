"""Checks of what a state holds: a checksum says that a file is as it was written, not that it makes sense."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from neotta.errors import StateError
from neotta.neo.moments import LARGEST_COUNT, limit, namespace, usable
from neotta.neo.rules import Field

SUBTRACTED = ("mean", "start", "shift")
"""Entries of a state that are subtracted from what the head gets or gives, as they are."""
_MARGIN = 10  # a mean of centered logits is up to twice as large as any of them


def check_number(name: str, value: Any, like: Any, least: float = -math.inf, most: float = math.inf) -> None:
    """Refuse an entry of a state that has another kind of numbers, or values that no run can produce.

    Args:
        name: What to call it.
        value: A tensor or array.
        like: The tensor or array that it will be written to.
        least: The least value it can have; whole numbers are at least 0 in any case.
        most: The largest value it can have.

    Raises:
        StateError: It cannot be used.
    """
    kind, wanted = _kind(value), _kind(like)
    if kind != wanted:
        raise StateError(f"entry {name!r} of this state holds {kind}, expected {wanted}")
    if kind == "whole numbers":
        _check_range(name, value, max(0, least), min(LARGEST_COUNT, namespace(like).iinfo(like.dtype).max))
    elif kind == "real numbers":
        narrow = value.to(like.dtype) if hasattr(value, "to") else value.astype(like.dtype)
        if not bool(namespace(narrow).isfinite(narrow).all()):
            raise StateError(f"entry {name!r} of this state holds NaN or Inf")
        _check_range(name, value, least, most)


def check_fields(fields: Mapping[str, Field], state: Mapping[str, Any], like: Mapping[str, Any]) -> None:
    """Refuse moments that no stream can have; entries and shapes have been checked."""
    for name, field in fields.items():
        check_number(name, state[name], like[name], field.least, field.most)


def largest_subtracted(dtype: Any) -> float:
    """The largest number that a model of this dtype may subtract: more than rows within `limit` can lead to."""
    return _MARGIN * limit(dtype)


def check_subtracted(state: Mapping[str, Any], dtype: Any) -> None:
    """Refuse finite vectors so large that a model of this dtype would answer with Inf; values have been checked."""
    largest = largest_subtracted(dtype)
    for name in SUBTRACTED:
        if name in state and not bool(usable(state[name], largest).all()):
            raise StateError(
                f"entry {name!r} of this state is too large for a model in {dtype}: it holds "
                f"{abs(state[name]).max().item():g}, at most {largest:g} can be used"
            )


def completed(fields: Mapping[str, Field], state: Mapping[str, Any]) -> dict[str, Any]:
    """Add the entries that a state may lack, because it was saved before they existed."""
    added: dict[str, Any] = {}
    for name, field in fields.items():
        if field.optional and name not in state and "count" in state:
            start = state["count"] * 0.0 + field.start
            added[name] = namespace(start).broadcast_to(
                start[(..., *(None for _ in field.shape))], (*start.shape, *field.shape)
            )
    return {**state, **added}


def check_ids(ids: Any, rows: Mapping[str, Any]) -> None:
    """Refuse ids of streams that are none, that occur twice, or that are not as many as there are rows."""
    if not isinstance(ids, list) or not all(type(item) in (int, str) for item in ids):
        raise StateError("the stream ids of this state are not a list of strings and whole numbers")
    if len(set(ids)) != len(ids):
        raise StateError("a stream occurs twice in this state")
    lengths = {name: len(values) for name, values in rows.items()}
    if set(lengths.values()) - {len(ids)}:
        raise StateError(f"this state has {len(ids)} stream ids for {lengths} rows")


def _kind(value: Any) -> str:
    if isinstance(value, (np.ndarray, np.generic)):
        letter = value.dtype.kind
        return {"i": "whole numbers", "u": "whole numbers", "f": "real numbers"}.get(letter, str(value.dtype))
    if value.is_floating_point():
        return "real numbers"
    plain = not value.is_complex() and not value.is_quantized and str(value.dtype) != "torch.bool"
    return "whole numbers" if plain else str(value.dtype)


def _check_range(name: str, value: Any, least: float, largest: float) -> None:
    if 0 in value.shape:
        return
    low, high = value.min().item(), value.max().item()
    if low < least or high > largest:
        raise StateError(f"entry {name!r} of this state holds {low if low < least else high}, out of range")

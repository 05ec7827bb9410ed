"""Stream ids and weights of the samples in a batch, checked without torch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from neotta.errors import InputError, StateError

if TYPE_CHECKING:
    from torch import Tensor

StreamId: TypeAlias = int | str


def checked(ids: StreamId | Iterable[StreamId] | Tensor) -> StreamId | tuple[StreamId, ...]:
    """Validate stream ids, or one for all samples, and convert them to plain strings and integers."""
    if hasattr(ids, "tolist"):
        ids = ids.tolist()
    if isinstance(ids, str | int):
        return one(ids)
    if isinstance(ids, bytes | Set | Mapping) or not hasattr(ids, "__iter__"):
        raise InputError(f"expected a list of stream ids, one per sample, or one for all, got {ids!r}")
    items = tuple(ids)
    return items if set(map(type, items)) <= {int, str} else tuple(map(one, items))


def one(item: object) -> StreamId:
    """Validate one stream id, and convert it to a plain string or integer."""
    plain = item.item() if hasattr(item, "item") else item
    if isinstance(plain, bool) or not isinstance(plain, int | str):
        raise InputError(f"a stream id must be a string or an integer, got {plain!r} ({type(plain).__name__})")
    return plain


def for_rows(ids: StreamId | tuple[StreamId, ...], rows: int) -> tuple[StreamId, ...]:
    """The stream of each row of a batch."""
    if isinstance(ids, str | int):
        return (ids,) * rows
    if len(ids) != rows:
        raise InputError(f"got {len(ids)} stream ids for a batch of {rows}: pass one per sample, or one for all")
    return ids


def checked_weights(weights: Any, rows: int | None = None) -> np.ndarray[Any, Any]:
    """Validate weights, one number per sample, as many as rows if their number is known; float64, (N,)."""
    try:
        numbers = np.array(weights.detach().cpu().double() if hasattr(weights, "detach") else weights, np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"expected weights, one number per sample, got {weights!r}") from error
    if numbers.ndim != 1:
        raise InputError(f"expected weights, one number per sample, got shape {numbers.shape}")
    if rows is not None and len(numbers) != rows:
        raise InputError(f"got {len(numbers)} weights for a batch of {rows}: pass one per sample")
    bad = np.flatnonzero(~(np.isfinite(numbers) & (numbers >= 0)))
    if len(bad):
        raise InputError(f"weight {bad[0]} is {numbers[bad[0]]:g}: expected a finite number of at least 0")
    return numbers


def pack(ids: Sequence[StreamId]) -> np.ndarray[Any, Any]:
    """Encode ids as bytes, for a file."""
    return np.frombuffer(bytearray(json.dumps(list(ids)).encode()), np.uint8)


def unpack(packed: np.ndarray[Any, Any]) -> list[StreamId]:
    """Decode ids encoded by `pack`."""
    try:
        if packed.dtype != np.uint8 or packed.ndim != 1:
            raise ValueError(f"{packed.dtype} of shape {packed.shape}")
        ids: list[StreamId] = json.loads(packed.tobytes())
        if type(ids) is not list or not set(map(type, ids)) <= {int, str}:
            raise ValueError("expected a list of strings and integers")
    except (ValueError, RecursionError) as error:
        raise StateError(f"the stream ids of this state cannot be read: {error}") from error
    return ids

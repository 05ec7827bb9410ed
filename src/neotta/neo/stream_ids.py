"""Which stream every sample of a batch comes from."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextvars import ContextVar
from typing import TypeAlias

import torch
from torch import Tensor

from neotta.errors import InputError

StreamId: TypeAlias = int | str

# A context variable: each thread, and each task of an event loop, has its own.
_CURRENT: ContextVar[tuple[StreamId, ...] | None] = ContextVar("neotta_streams", default=None)


@contextlib.contextmanager
def streams(ids: Iterable[StreamId] | Tensor) -> Iterator[None]:
    """Say which stream each sample of the next batches comes from.

    ```python
    with neotta.streams(["gate", "yard", "gate"]):
        logits = model(images)  # three images from two cameras
    ```

    It holds for every model adapted with `streams=True` that is called inside the block by the same thread (or task).

    Args:
        ids: One id for each sample, strings or whole numbers; 7 and "7" are two streams. Arrays and tensors of
            whole numbers do as well.

    Raises:
        InputError: An id is neither a string nor a whole number.
    """
    token = _CURRENT.set(checked(ids))
    try:
        yield
    finally:
        _CURRENT.reset(token)


def current(samples: int) -> tuple[StreamId, ...]:
    """The ids of the batch that is being answered, one for each of its samples."""
    ids = _CURRENT.get()
    if ids is None:
        raise InputError(
            "this model keeps one centroid per stream and was not told where the batch comes from: "
            "call it inside `with neotta.streams(ids):`, one id for each sample"
        )
    if len(ids) != samples:
        raise InputError(f"got {len(ids)} stream ids for a batch of {samples}: give one for each sample")
    return ids


def checked(ids: Iterable[StreamId] | Tensor) -> tuple[StreamId, ...]:
    """Stream ids as plain strings and whole numbers."""
    if hasattr(ids, "tolist"):
        ids = ids.tolist()
    if isinstance(ids, str | bytes | Set | Mapping) or not hasattr(ids, "__iter__"):
        raise InputError(f"stream ids are a list with one id for each sample, in their order, got {ids!r}")
    given = tuple(ids)
    return given if set(map(type, given)) <= {int, str} else tuple(map(one, given))


def one(item: object) -> StreamId:
    """One stream id as a plain string or whole number."""
    plain = item.item() if hasattr(item, "item") else item
    if isinstance(plain, bool) or not isinstance(plain, int | str):
        raise InputError(f"a stream id is a string or a whole number, got {plain!r} ({type(plain).__name__})")
    return plain


def pack(ids: Sequence[StreamId]) -> Tensor:
    """Ids as a tensor of bytes, for a file."""
    return torch.frombuffer(bytearray(json.dumps(list(ids)).encode()), dtype=torch.uint8)


def unpack(packed: Tensor) -> list[StreamId]:
    """The ids that `pack` has packed."""
    ids: list[StreamId] = json.loads(bytes(packed.cpu().numpy()))
    return ids

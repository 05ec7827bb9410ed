"""The stream ids of the samples in a batch."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from neotta.errors import InputError, StateError
from neotta.neo.handout import Handout, Taker, handing_out

if TYPE_CHECKING:  # ids work without torch
    from torch import Tensor

StreamId: TypeAlias = int | str

# A context variable is local to each thread and to each task of an event loop.
_CURRENT: ContextVar[Handout[tuple[StreamId, ...]] | None] = ContextVar("neotta_streams", default=None)


@contextlib.contextmanager
def streams(ids: Iterable[StreamId] | Tensor) -> Iterator[None]:
    """Set the stream of each sample for the calls inside a block.

    ```python
    with neotta.streams(["gate", "yard", "gate"]):
        logits = model(images)  # three images from two cameras
    ```

    It applies to every model adapted with `streams=True` that the same thread (or task) calls inside the block. Several
    smaller batches take the ids in order, so it works around a Hugging Face pipeline too.

    Args:
        ids: One id per sample, strings or integers; 7 and "7" are different streams. Arrays and tensors of integers
            work too.

    Raises:
        InputError: An id is neither a string nor an integer, or there are not as many as samples. No state is then
            changed.
    """
    with handing_out(Handout(checked(ids), "stream ids"), _CURRENT):
        yield


def current(samples: int, taker: Taker, *, peek: bool = False) -> tuple[StreamId, ...]:
    """The ids of the next batch of a memory, one per sample; with `peek`, they remain the next."""
    handout = _CURRENT.get()
    if handout is None:
        raise InputError(
            "this model has one centroid per stream and got no stream ids: "
            "call it inside `with neotta.streams(ids):` with one id per sample"
        )
    return handout.peek(samples, taker) if peek else handout.take(samples, taker)


def every() -> tuple[StreamId, ...]:
    """All distinct ids of the current block."""
    handout = _CURRENT.get()
    return () if handout is None else tuple(dict.fromkeys(handout.values))


def checked(ids: Iterable[StreamId] | Tensor) -> tuple[StreamId, ...]:
    """Validate stream ids, and convert them to plain strings and integers."""
    if hasattr(ids, "tolist"):
        ids = ids.tolist()
    if isinstance(ids, str | bytes | Set | Mapping) or not hasattr(ids, "__iter__"):
        raise InputError(f"expected a list of stream ids, one per sample, got {ids!r}")
    given = tuple(ids)
    return given if set(map(type, given)) <= {int, str} else tuple(map(one, given))


def one(item: object) -> StreamId:
    """Validate one stream id, and convert it to a plain string or integer."""
    plain = item.item() if hasattr(item, "item") else item
    if isinstance(plain, bool) or not isinstance(plain, int | str):
        raise InputError(f"a stream id must be a string or an integer, got {plain!r} ({type(plain).__name__})")
    return plain


def pack(ids: Sequence[StreamId]) -> Tensor:
    """Encode ids as a tensor of bytes, for a file."""
    import torch

    return torch.from_numpy(pack_array(ids))


def unpack(packed: Tensor) -> list[StreamId]:
    """Decode ids encoded by `pack`.

    Raises:
        StateError: They are not what `pack` writes.
    """
    return unpack_array(packed.cpu().numpy())


def pack_array(ids: Sequence[StreamId]) -> np.ndarray[Any, Any]:
    """Same as `pack`, without torch."""
    return np.frombuffer(bytearray(json.dumps(list(ids)).encode()), np.uint8)


def unpack_array(packed: np.ndarray[Any, Any]) -> list[StreamId]:
    """Same as `unpack`, without torch."""
    try:
        if packed.dtype != np.uint8 or packed.ndim != 1:
            raise ValueError(f"{packed.dtype} of shape {packed.shape}")
        ids: list[StreamId] = json.loads(packed.tobytes())
    except (ValueError, RecursionError) as error:
        raise StateError(f"the stream ids of this state cannot be read: {error}") from error
    return ids

"""Settings of single calls: predict without adapting, and let some rows count less."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from neotta.errors import InputError
from neotta.neo.handout import Handout, Taker, handing_out
from neotta.neo.row_weights import checked_weights

# Context variables are local to each thread and to each task of an event loop.
_WEIGHTS: ContextVar[Handout[Tensor] | None] = ContextVar("neotta_rows", default=None)
_PAUSED: ContextVar[frozenset[int]] = ContextVar("neotta_paused", default=frozenset())


@contextlib.contextmanager
def rows(weights: Any) -> Iterator[None]:
    """Set how much each sample counts, for the calls inside a block.

    ```python
    with neotta.rows([1.0, 1.0, 0.0, 0.2]):
        logits = model(images)  # four images: the third is not learnt from, the fourth a little
    ```

    All samples are predicted. It applies to every adapted model, and every adapter whose method supports it, that the
    same thread (or task) calls inside the block. Several smaller batches take the weights in order, so it works around
    a Hugging Face pipeline too.

    Args:
        weights: One number per sample, at least 0; 1 is an ordinary sample, and 0 leaves the state as it is.

    Raises:
        InputError: A weight is negative, NaN or Inf, or there are not as many as samples. No state is then changed.
    """
    with handing_out(Handout(checked_weights(weights), "weights"), _WEIGHTS):
        yield


@contextlib.contextmanager
def pausing(parts: frozenset[int]) -> Iterator[None]:
    """Let the objects with these ids predict without adapting inside a block."""
    token = _PAUSED.set(_PAUSED.get() | parts)
    try:
        yield
    finally:
        _PAUSED.reset(token)


def is_paused(part: object) -> bool:
    """Whether an object must not adapt in this thread or task now."""
    return id(part) in _PAUSED.get()


def has_weights() -> bool:
    """Whether samples have weights in this thread or task now."""
    return _WEIGHTS.get() is not None


def take_weights(samples: int, taker: Taker) -> Tensor | None:
    """The weights of the next batch, (samples,) float64 on the CPU; None if there are none."""
    handout = _WEIGHTS.get()
    return None if handout is None else handout.take(samples, taker)


def peek_weights(samples: int, taker: Taker) -> Tensor | None:
    """The weights that `take_weights` will return next."""
    handout = _WEIGHTS.get()
    return None if handout is None else handout.peek(samples, taker)


# ---- compiled graphs, which are traced once and so must look up the settings when they run

_HEADS: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_LIBRARY: Any = torch.library.Library("neotta", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define("row_weights(Tensor rows, SymInt samples, int head) -> Tensor")
_LIBRARY.define("adapts(Tensor like, int part) -> Tensor")


def register(head: Any) -> None:
    """Let compiled graphs find a head by its id."""
    _HEADS[id(head)] = head


@torch.library.impl(_LIBRARY, "row_weights", "CompositeExplicitAutograd")
def _row_weights(rows: Tensor, samples: int, head: int) -> Tensor:
    ones: Tensor = _ones(rows, samples, head)
    found = _HEADS[head]
    weights = take_weights(samples, found.memory)
    if is_paused(found):
        return ones * 0
    return ones if weights is None else weights.repeat_interleave(len(rows) // max(samples, 1)).to(ones)


@torch.library.register_fake("neotta::row_weights", lib=_LIBRARY)  # type: ignore[untyped-decorator]
def _ones(rows: Tensor, samples: int, head: int) -> Tensor:
    return rows.new_ones(rows.shape[0], dtype=torch.float32 if rows.device.type == "mps" else torch.float64)


def weights_in_graph(rows: Tensor, samples: int, head: object) -> Tensor | None:
    """The weights of the rows of a compiled graph, (N,): all 0 while the head is paused; None in an exported graph."""
    if torch.compiler.is_exporting():
        return None
    weights: Tensor = torch.ops.neotta.row_weights(rows, samples, id(head))
    return weights


@torch.library.impl(_LIBRARY, "adapts", "CompositeExplicitAutograd")
def _adapts(like: Tensor, part: int) -> Tensor:
    return like.new_full((), part not in _PAUSED.get())


@torch.library.register_fake("neotta::adapts", lib=_LIBRARY)  # type: ignore[untyped-decorator]
def _scalar(like: Tensor, part: int) -> Tensor:
    return like.new_empty(())


def adapts_in_graph(like: Tensor, part: object) -> Tensor | float:
    """1 if an object of a compiled graph may adapt, () of the dtype of `like`, and 0 while it is paused."""
    if torch.compiler.is_exporting():
        return 1.0
    share: Tensor = torch.ops.neotta.adapts(like, id(part))
    return share


def settings(head: Any, rows: Tensor, samples: int) -> tuple[bool, Tensor | None]:
    """Whether a head adapts in this call, and the weights of its samples or rows."""
    if is_compiling():
        return head.adapting, weights_in_graph(rows, samples, head)
    if head.followers and has_weights():
        raise InputError("neo-bn normalises whole batches, so its rows cannot have weights: leave bad ones out")
    return head.adapting and not is_paused(head), take_weights(samples, head.memory)

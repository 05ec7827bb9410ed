"""Settings of single calls: whose samples they are, how much each counts, and whether the model adapts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from neotta.errors import InputError
from neotta.neo.state import widest
from neotta.neo.stream_ids import StreamId, checked, checked_weights, for_rows


class Call(NamedTuple):
    """What the `with` blocks around a call say."""

    ids: StreamId | tuple[StreamId, ...] | None = None  # the stream of each row, or one for all rows
    weights: Tensor | None = None  # how much each row counts, (N,) float64 on the CPU
    paused: frozenset[int] = frozenset()  # the ids of the objects that predict without adapting


# A context variable is local to each thread and to each task of an event loop.
CALL: ContextVar[Call] = ContextVar("neotta_call", default=Call())  # noqa: B039  # it cannot be changed


@contextlib.contextmanager
def _inside(call: Call) -> Iterator[None]:
    token = CALL.set(call)
    try:
        yield
    finally:
        CALL.reset(token)


@contextlib.contextmanager
def streams(ids: StreamId | Iterable[StreamId] | Tensor) -> Iterator[None]:
    """Set the stream of each sample for the calls inside a block.

    ```python
    with neotta.streams(["gate", "yard", "gate"]):
        logits = model(images)  # three images from two cameras
    with neotta.streams("gate"):
        logits = model(images)  # any number of images from one camera
    ```

    It applies to every model adapted with `streams=True` that the same thread (or task) calls inside the block.
    `asyncio.to_thread` takes it along; `loop.run_in_executor` does not, so there the call itself gets the ids:

    ```python
    logits = await asyncio.get_running_loop().run_in_executor(None, neotta.streams("gate")(model), images)
    ```

    Args:
        ids: One id per sample, strings or integers; 7 and "7" are different streams. Arrays and tensors of integers
            work too. A single string or integer is the id of all samples.

    Raises:
        InputError: An id is neither a string nor an integer, or there are not as many as samples in a call. No state is
            then changed.
    """
    with _inside(CALL.get()._replace(ids=checked(ids))):
        yield


@contextlib.contextmanager
def rows(weights: Any) -> Iterator[None]:
    """Set how much each sample counts, for the calls inside a block.

    ```python
    with neotta.rows([1.0, 1.0, 0.0, 0.2]):
        logits = model(images)  # four images: the third is not learnt from, the fourth a little
    ```

    All samples are predicted. It applies to every adapted model, and every adapter whose method supports it, that the
    same thread (or task) calls inside the block.

    Args:
        weights: One number per sample, at least 0; 1 is an ordinary sample, and 0 leaves the state as it is.

    Raises:
        InputError: A weight is negative, NaN or Inf, or there are not as many as samples in a call. No state is then
            changed.
    """
    with _inside(CALL.get()._replace(weights=torch.from_numpy(checked_weights(weights)))):
        yield


@contextlib.contextmanager
def paused(model: Any) -> Iterator[None]:
    """Predict without adapting inside a block.

    ```python
    with neotta.paused(model):
        logits = model(images)  # nothing changes
    ```

    Only calls of this thread (or task) are affected: others go on adapting the same model, and so do the threads of
    `loop.run_in_executor`, unless they are given `neotta.paused(model)(model)`. To stop adapting everywhere, use
    `neotta.head(model).freeze()`.

    Args:
        model: An adapted model, or an adapter of `neotta.create`.

    Raises:
        NotAdaptedError: The model is not adapted.
    """
    from neotta.neo.surgery import heads  # whose heads read these settings

    if isinstance(model, nn.Module):
        heads(model)  # it must have some
        parts = frozenset(map(id, model.modules()))
    elif callable(model) and hasattr(model, "detach"):
        parts = frozenset({id(model)})
    else:
        raise InputError(f"expected an adapted model or an adapter, got {type(model).__name__}")
    call = CALL.get()
    with _inside(call._replace(paused=call.paused | parts)):
        yield


@contextlib.contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Run a model inside a block without adapting it, adapted or not; samples are of no known stream."""
    with _inside(Call(ids=0, paused=frozenset(map(id, model.modules())))):
        yield


# ---- what a call reads


def current_ids(rows: int) -> tuple[StreamId, ...]:
    """The stream of each row of a call."""
    ids = CALL.get().ids
    if ids is None:
        raise InputError(
            "this model has one state per stream and got no stream ids: "
            "call it inside `with neotta.streams(ids):` with one id per sample. (Ids set in an event loop do not reach "
            "loop.run_in_executor: use asyncio.to_thread, or give neotta.streams(ids)(model) to the executor)"
        )
    return for_rows(ids, rows)


def current_weights(rows: int) -> Tensor | None:
    """The weights of the rows of a call, (rows,) float64 on the CPU; None if there are none."""
    weights = CALL.get().weights
    if weights is not None and len(weights) != rows:
        raise InputError(f"got {len(weights)} weights for a batch of {rows}: pass one per sample")
    return weights


def has_weights() -> bool:
    """Whether rows have weights in this thread or task now."""
    return CALL.get().weights is not None


def is_paused(part: object) -> bool:
    """Whether an object must not adapt in this thread or task now."""
    return id(part) in CALL.get().paused


# ---- compiled graphs, which are traced once and so must look up the settings when they run

_LIBRARY: list[torch.library.Library] = []


def _define_operators() -> None:
    if _LIBRARY:
        return
    library: Any = torch.library.Library("neotta", "FRAGMENT")  # type: ignore[no-untyped-call]
    _LIBRARY.append(library)  # it lives as long as the process
    library.define("row_weights(Tensor rows, int head) -> Tensor")
    library.define("adapts(Tensor like, int part) -> Tensor")
    library.impl("row_weights", _row_weights, "CompositeExplicitAutograd")
    library.impl("adapts", _adapts, "CompositeExplicitAutograd")
    torch.library.register_fake("neotta::row_weights", _ones, lib=library)
    torch.library.register_fake("neotta::adapts", lambda like, part: like.new_empty(()), lib=library)


# The compiler calls it when it meets it, and traces nothing: torch.compiler.assume_constant_result, without its import.
_define_operators._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _row_weights(rows: Tensor, head: int) -> Tensor:
    ones = _ones(rows, head)
    weights = current_weights(len(rows))
    if head in CALL.get().paused:
        return ones * 0
    return ones if weights is None else weights.to(ones, copy=True)


def _ones(rows: Tensor, head: int) -> Tensor:
    return rows.new_ones(rows.shape[0], dtype=widest(rows.device))


def _adapts(like: Tensor, part: int) -> Tensor:
    return like.new_full((), part not in CALL.get().paused)


def weights_in_graph(rows: Tensor, head: object) -> Tensor | None:
    """The weights of the rows of a call of a compiled graph, (rows,), 0 while the head is paused; none if exported."""
    if torch.compiler.is_exporting():
        return None
    _define_operators()
    weights: Tensor = torch.ops.neotta.row_weights(rows, id(head))
    return weights


def adapts_in_graph(like: Tensor, part: object) -> Tensor | float:
    """1 if an object of a compiled graph may adapt, () of the dtype of `like`, and 0 while it is paused."""
    if torch.compiler.is_exporting():
        return 1.0
    _define_operators()
    share: Tensor = torch.ops.neotta.adapts(like, id(part))
    return share

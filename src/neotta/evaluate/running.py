"""Letting an adapter go through the orders of a run, batch by batch.

A run with more samples of an order begins exactly as the run with fewer did. So it continues from a checkpoint, and a
sweep over the number of samples costs no more than its longest run.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from neotta.adapters.base import EmbeddingAdapter
from neotta.adapters.registry import AnyAdapter
from neotta.data.drawing import Indices
from neotta.data.order import Order
from neotta.evaluate.batches import TOGETHER, Batches
from neotta.evaluate.camera_states import CameraStates
from neotta.evaluate.predictions import RunResult


@dataclass
class Checkpoint:
    """A run's adapter and result after the last full batch, which a longer run contains, too.

    Attributes:
        key: What the run has in common with a longer one.
        order: The order it adapted to.
        stop: Number of entries of the order that were seen.
        result: Their predictions.
        adapter: The adapter.
        state: Its state at that point; None if it is still there.
        not_adapted: Number of samples that it had not adapted to.
    """

    key: str
    order: Order
    stop: int
    result: RunResult
    adapter: AnyAdapter
    state: dict[str, Tensor] | None
    not_adapted: int

    @classmethod
    def take(cls, key: str, order: Order, stop: int, result: RunResult, adapter: AnyAdapter) -> Checkpoint:
        """Save the state of a run before its ragged last batch, or at its end."""
        state = adapter.state_dict() if stop < len(order) else None
        return cls(key, order, stop, result.copy(), adapter, state, adapter.skipped)

    def is_prefix_of(self, key: str, order: Order) -> bool:
        """Whether a run begins with the batches that were seen."""
        stop = self.stop
        return (
            self.key == key
            and stop <= len(order)
            and self.order.domains == order.domains
            and np.array_equal(self.order.index[:stop], order.index[:stop])
            and np.array_equal(self.order.domain[:stop], order.domain[:stop])
            and (stop == len(order) or any(batch.start == stop for batch in order.batches()))
        )

    def resume(self) -> tuple[AnyAdapter, RunResult]:
        """The adapter as it was, and the predictions so far."""
        if self.state is not None:
            self.adapter.load_state_dict(self.state)
        self.adapter.skipped = self.not_adapted
        return self.adapter, self.result.copy()


def full_batches(order: Order) -> int:
    """Number of entries of an order before a ragged last batch."""
    batches = order.batches()
    if not batches or batches[-1].stop - batches[-1].start == order.batch_size:
        return len(order)
    return int(batches[-1].start)


class Runner:
    """Carries out one run after the other; a longer one continues where a shorter one stopped.

    Args:
        batches: Makes the batches of orders.
    """

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self._checkpoint: Checkpoint | None = None

    def predict(
        self,
        key: str,
        orders: tuple[Order, ...],
        start: Callable[[], AnyAdapter],
        *,
        from_cache: bool,
        resumable: bool = False,
        separate: bool = False,
    ) -> RunResult:
        """Carry a run out.

        Args:
            key: What the run has in common with a longer one.
            orders: A single order is adapted to and scored; of two, the second is scored with the state frozen.
            start: Makes the adapter, at its start.
            from_cache: Whether the adapter gets embeddings instead of images.
            resumable: Whether to keep a checkpoint for a longer run.
            separate: Whether each camera of the order has a state of its own; such a run keeps no checkpoint.
        """
        first, *rest = orders
        before, self._checkpoint = self._checkpoint, None
        if before is not None and not separate and before.is_prefix_of(key, first):
            (adapter, result), done = before.resume(), before.stop
        else:
            adapter, result, done = start(), RunResult(), 0
        batches = self._batches.embeddings if from_cache else self._batches.images
        states = CameraStates(adapter) if separate else None

        def advance(order: Order, start: int, stop: int, *, adapt: bool, scored: bool) -> None:
            began = time.perf_counter()
            waiting = _Waiting(self._batches, order, result)
            for inputs, entries, unreadable in batches(order, start, stop):
                result.unreadable += unreadable
                if len(entries):
                    step = functools.partial(_logits, adapter, adapt=adapt, from_cache=from_cache)
                    if states is None or order.camera is None:
                        logits = step(inputs)
                    else:
                        logits = states.predict(inputs, order.camera[entries], step)
                    if scored:
                        waiting.add(entries, logits)
            result.seconds += time.perf_counter() - began
            waiting.flush()

        with one_thread() if from_cache else contextlib.nullcontext():
            if resumable and not separate:
                stop = full_batches(first)
                advance(first, done, stop, adapt=True, scored=not rest)
                self._checkpoint, done = Checkpoint.take(key, first, stop, result, adapter), stop
            advance(first, done, len(first), adapt=True, scored=not rest)
            for order in rest:
                advance(order, 0, len(order), adapt=False, scored=True)
        result.not_adapted = adapter.skipped
        return result


class _Waiting:
    """Predictions that are added to a result many batches at a time: that is much faster than one by one."""

    def __init__(self, batches: Batches, order: Order, result: RunResult) -> None:
        self._batches, self._order, self._result = batches, order, result
        self._parts: list[tuple[Indices, Tensor]] = []
        self._samples = 0

    def add(self, entries: Indices, logits: Tensor) -> None:
        self._parts.append((entries, logits.cpu()))
        self._samples += len(entries)
        if self._samples >= TOGETHER:
            self.flush()

    def flush(self) -> None:
        if self._parts:
            entries = np.concatenate([entries for entries, _ in self._parts])
            logits = torch.cat([logits for _, logits in self._parts])
            self._result.add(self._order, entries, logits, self._batches.labels(self._order, entries))
            self._parts, self._samples = [], 0


def _logits(adapter: AnyAdapter, inputs: Tensor, *, adapt: bool, from_cache: bool) -> Tensor:
    if from_cache and isinstance(adapter, EmbeddingAdapter):
        return adapter.predict_embeddings(inputs, adapt=adapt)
    return adapter(inputs, adapt=adapt)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread: a batch of embeddings is too little work to be shared.

    The results then do not depend on the number of cores either.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)

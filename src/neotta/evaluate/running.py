"""Letting an adapter go through the orders of a run, batch by batch."""

from __future__ import annotations

import contextlib
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
from neotta.evaluate.checkpoint import Checkpoint, full_batches
from neotta.evaluate.predictions import RunResult

OnBatch = Callable[[str, int], None]
"""Called with the method and the number of samples after each batch."""


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
        on_batch: OnBatch | None = None,
        resumable: bool = False,
    ) -> RunResult:
        """Carry a run out.

        Args:
            key: What the run has in common with a longer one.
            orders: A single order is adapted to and scored; of two, the second is scored with the state frozen.
            start: Makes the adapter, at its start.
            from_cache: Whether the adapter gets embeddings instead of images.
            on_batch: Called with the method and the number of samples after each batch.
            resumable: Whether to keep a checkpoint for a longer run.
        """
        first, *rest = orders
        before, self._checkpoint = self._checkpoint, None
        if before is not None and before.is_prefix_of(key, first):
            (adapter, result), done = before.resume(), before.stop
        else:
            adapter, result, done = start(), RunResult(), 0
        walk = _Walk(self._batches, adapter, result, from_cache, on_batch)
        with one_thread() if from_cache else contextlib.nullcontext():
            if resumable:
                stop = full_batches(first)
                walk.advance(first, done, stop, adapt=True, scored=not rest)
                self._checkpoint, done = Checkpoint.take(key, first, stop, result, adapter), stop
            walk.advance(first, done, len(first), adapt=True, scored=not rest)
            for order in rest:
                walk.advance(order, 0, len(order), adapt=False, scored=True)
        result.not_adapted = adapter.skipped
        return result


@dataclass(frozen=True)
class _Walk:
    """An adapter on its way through orders, and the result that grows."""

    batches: Batches
    adapter: AnyAdapter
    result: RunResult
    from_cache: bool
    on_batch: OnBatch | None

    def advance(self, order: Order, start: int, stop: int, *, adapt: bool, scored: bool) -> None:
        """Go through the entries of an order from `start` to `stop`, both batch boundaries."""
        began = time.perf_counter()
        batches = self.batches.embeddings if self.from_cache else self.batches.images
        waiting: list[tuple[Indices, Tensor]] = []
        samples = 0
        for inputs, entries, unreadable in batches(order, start, stop):
            self.result.unreadable += unreadable
            if len(entries) == 0:
                continue
            logits = self._logits(inputs, adapt)
            if scored:
                waiting.append((entries, logits.cpu()))
                samples += len(entries)
                if samples >= TOGETHER:
                    self._add(order, waiting)
                    waiting, samples = [], 0
            if self.on_batch is not None:
                self.on_batch(self.adapter.name, len(entries))
        self.result.seconds += time.perf_counter() - began
        if waiting:
            self._add(order, waiting)

    def _logits(self, inputs: Tensor, adapt: bool) -> Tensor:
        if self.from_cache and isinstance(self.adapter, EmbeddingAdapter):
            return self.adapter.predict_embeddings(inputs, adapt=adapt)
        return self.adapter(inputs, adapt=adapt)

    def _add(self, order: Order, waiting: list[tuple[Indices, Tensor]]) -> None:
        """Add the predictions of many batches at once: that is much faster than one by one."""
        entries = np.concatenate([entries for entries, _ in waiting])
        logits = torch.cat([logits for _, logits in waiting])
        self.result.add(order, entries, logits, self.batches.labels(order, entries))


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

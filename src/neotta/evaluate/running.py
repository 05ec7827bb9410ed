"""Letting an adapter go through the orders of a run, batch by batch."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from neotta.adapters.base import EmbeddingAdapter
from neotta.adapters.registry import AnyAdapter
from neotta.data.drawing import Indices
from neotta.data.loading import Loader
from neotta.data.order import Order
from neotta.evaluate.domains import Domains
from neotta.evaluate.embeddings import EmbeddingCache
from neotta.evaluate.predictions import UNKNOWN, RunResult
from neotta.models.preprocess import Preprocess

Batch = tuple[Tensor, Indices, int]
"""Images or embeddings of a batch, their entries in the order, and the number of samples that could not be read."""
TOGETHER = 4096
"""Number of embeddings that are gathered, and of predictions that are scored, at once."""


class Runner:
    def __init__(
        self, data: Domains, cache: EmbeddingCache, preprocess: Preprocess, weight: Tensor, workers: int | None
    ) -> None:
        self._data, self._cache, self._preprocess = data, cache, preprocess
        self._weight, self._workers = weight, workers

    def predict(
        self, orders: tuple[Order, ...], adapter: AnyAdapter, *, from_cache: bool, separate: bool = False
    ) -> RunResult:
        result, batches = RunResult(), self._embeddings if from_cache else self._images
        states = CameraStates(adapter) if separate else None

        def advance(order: Order, *, adapt: bool, scored: bool) -> None:
            began = time.perf_counter()
            waiting: list[tuple[Indices, Tensor]] = []  # scored many batches at a time: much faster than one by one
            samples = 0
            for inputs, entries, unreadable in batches(order):
                result.unreadable += unreadable
                if len(entries):
                    step = functools.partial(_logits, adapter, adapt=adapt, from_cache=from_cache)
                    if states is None or order.camera is None:
                        logits = step(inputs)
                    else:
                        logits = states.predict(inputs, order.camera[entries], step)
                    if scored:
                        waiting.append((entries, logits.cpu()))
                        samples += len(entries)
                    if samples >= TOGETHER:
                        self._score(result, order, waiting)
                        waiting, samples = [], 0
            result.seconds += time.perf_counter() - began
            self._score(result, order, waiting)

        with one_thread() if from_cache else contextlib.nullcontext():
            advance(orders[0], adapt=True, scored=len(orders) == 1)
            for order in orders[1:]:
                advance(order, adapt=False, scored=True)
        result.not_adapted = adapter.skipped
        return result

    def _embeddings(self, order: Order) -> Iterator[Batch]:
        batches = order.batches()
        several = max(1, TOGETHER // order.batch_size)
        for first in range(0, len(batches), several):
            here = batches[first : first + several]
            embeddings, entries = self._gather(order, here[0].start, here[-1].stop)
            borders = np.searchsorted(entries, [here[0].start, *(batch.stop for batch in here)]).tolist()
            for batch, low, high in zip(here, borders, borders[1:], strict=False):
                yield embeddings[low:high], entries[low:high], batch.stop - batch.start - (high - low)

    def _gather(self, order: Order, start: int, stop: int) -> tuple[Tensor, Indices]:
        entries = np.arange(start, stop)
        rows, places = [], []
        for domain in np.unique(order.domain[start:stop]):
            here = entries[order.domain[start:stop] == domain]
            part, readable = self._cache.get(self._data.dataset(order.domains[domain]), order.index[here])
            rows.append(part)
            places.append(here[readable])
        place = np.argsort(np.concatenate(places))
        embeddings = torch.cat(rows)[torch.from_numpy(place)] if len(rows) > 1 else rows[0]
        return embeddings.to(self._weight.device, self._weight.dtype), np.concatenate(places)[place]

    def _images(self, order: Order) -> Iterator[Batch]:
        datasets = {name: self._data.dataset(name) for name in order.domains}
        loader = Loader(datasets, order, self._preprocess, workers=self._workers, device=self._weight.device)
        place = {
            (order.domains[domain], name): entry
            for entry, (domain, name) in enumerate(zip(order.domain, order.ids, strict=True))
        }
        seen = 0
        for batch in loader:
            entries = [place[domain, name] for domain, name in zip(batch.domains, batch.ids, strict=True)]
            skipped = len(loader.skipped) - seen
            seen = len(loader.skipped)
            yield batch.images.to(self._weight.dtype), np.array(entries, dtype=np.int64), skipped
        if len(loader.skipped) > seen:  # nothing of the last batches could be read
            yield self._weight.new_empty(0), np.empty(0, dtype=np.int64), len(loader.skipped) - seen

    def _score(self, result: RunResult, order: Order, waiting: list[tuple[Indices, Tensor]]) -> None:
        if not waiting:
            return
        entries = np.concatenate([entries for entries, _ in waiting])
        labels = np.full(len(entries), UNKNOWN, dtype=np.int64)
        for number, name in enumerate(order.domains):
            known = self._data.dataset(name).labels
            if known is not None:
                here = order.domain[entries] == number
                labels[here] = known[order.index[entries[here]]]
        result.add(order, entries, torch.cat([logits for _, logits in waiting]), torch.from_numpy(labels))


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


class CameraStates:
    """Keeps the cameras of an order apart: the rows of a batch are predicted camera by camera, each with its own state.

    This works with every method, since a state can be put aside and taken up again at any time.
    """

    def __init__(self, adapter: AnyAdapter) -> None:
        self._adapter, self._start = adapter, adapter.state_dict()
        self._states: dict[int, dict[str, Tensor]] = {}
        self._current: int | None = None

    def _switch(self, camera: int) -> None:
        if camera == self._current:
            return
        if self._current is not None:
            self._states[self._current] = self._adapter.state_dict()
        self._adapter.load_state_dict(self._states.get(camera, self._start))
        self._current = camera

    def predict(self, inputs: Tensor, cameras: Indices, step: Callable[[Tensor], Tensor]) -> Tensor:
        rows, parts = [], []
        for camera in np.unique(cameras).tolist():
            here = np.flatnonzero(cameras == camera)
            self._switch(camera)
            parts.append(step(inputs[torch.from_numpy(here)]))
            rows.append(here)
        place = np.argsort(np.concatenate(rows))
        return torch.cat(parts)[torch.from_numpy(place)]

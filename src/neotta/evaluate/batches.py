"""The batches of an order: embeddings from the cache, or images."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from neotta.data.drawing import Indices
from neotta.data.loading import Loader
from neotta.data.order import Order, reorder
from neotta.evaluate.domains import Domains
from neotta.evaluate.embeddings import EmbeddingCache
from neotta.evaluate.predictions import UNKNOWN
from neotta.models.preprocess import Preprocess

Batch = tuple[Tensor, Indices, int]
"""Images or embeddings of a batch, their entries in the order, and the number of samples that could not be read."""
TOGETHER = 4096
"""Number of embeddings that are gathered, and of predictions that are scored, at once."""


class Batches:
    """Makes the batches of orders.

    Args:
        data: Where the samples are.
        cache: Where their embeddings are.
        preprocess: The preprocessing in front of the model.
        weight: The weight of the head: batches have its device and dtype.
        workers: Loader processes; None chooses.
    """

    def __init__(
        self, data: Domains, cache: EmbeddingCache, preprocess: Preprocess, weight: Tensor, workers: int | None
    ) -> None:
        self._data, self._cache, self._preprocess = data, cache, preprocess
        self._weight, self._workers = weight, workers

    def embeddings(self, order: Order, start: int, stop: int) -> Iterator[Batch]:
        """Embeddings of the entries from `start` to `stop`, both batch boundaries, batch by batch."""
        batches = [batch for batch in order.batches() if start <= batch.start < stop]
        several = max(1, TOGETHER // order.batch_size)
        for first in range(0, len(batches), several):
            here = batches[first : first + several]
            embeddings, entries = self._gather(order, here[0].start, here[-1].stop)
            borders = np.searchsorted(entries, [here[0].start, *(batch.stop for batch in here)]).tolist()
            for batch, low, high in zip(here, borders, borders[1:], strict=False):
                yield embeddings[low:high], entries[low:high], batch.stop - batch.start - (high - low)

    def _gather(self, order: Order, start: int, stop: int) -> tuple[Tensor, Indices]:
        """Embeddings of the readable ones among some entries, (n, d), and these entries, (n,)."""
        entries = np.arange(start, stop)
        rows, kept = [], []
        for domain in np.unique(order.domain[start:stop]):
            here = entries[order.domain[start:stop] == domain]
            found, readable = self._cache.get(self._data.dataset(order.domains[domain]), order.index[here])
            rows.append(found)
            kept.append(here[readable])
        place = np.argsort(np.concatenate(kept))
        embeddings = torch.cat(rows)[torch.from_numpy(place)] if len(rows) > 1 else rows[0]
        return embeddings.to(self._weight.device, self._weight.dtype), np.concatenate(kept)[place]

    def images(self, order: Order, start: int, stop: int) -> Iterator[Batch]:
        """Images of the entries from `start` to `stop`, both batch boundaries, batch by batch."""
        if start == stop:
            return
        datasets = {name: self._data.dataset(name) for name in order.domains}
        part = order if stop - start == len(order) else reorder(order, np.arange(start, stop))
        loader = Loader(datasets, part, self._preprocess, workers=self._workers, device=self._weight.device)
        place = {
            (part.domains[domain], name): start + entry
            for entry, (domain, name) in enumerate(zip(part.domain, part.ids, strict=True))
        }
        seen = 0
        for batch in loader:
            entries = [place[domain, name] for domain, name in zip(batch.domains, batch.ids, strict=True)]
            skipped = len(loader.skipped) - seen
            seen = len(loader.skipped)
            yield batch.images.to(self._weight.dtype), np.array(entries, dtype=np.int64), skipped
        if len(loader.skipped) > seen:  # nothing of the last batches could be read
            yield self._weight.new_empty(0), np.empty(0, dtype=np.int64), len(loader.skipped) - seen

    def labels(self, order: Order, entries: Indices) -> Tensor:
        """The labels of some entries, (n,); UNKNOWN if unlabelled."""
        labels = np.full(len(entries), UNKNOWN, dtype=np.int64)
        for number, name in enumerate(order.domains):
            known = self._data.dataset(name).labels
            if known is not None:
                here = order.domain[entries] == number
                labels[here] = known[order.index[entries[here]]]
        return torch.from_numpy(labels)

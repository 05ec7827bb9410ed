"""Made-up runs that know which of their samples were right."""

from __future__ import annotations

import itertools

import numpy as np
import torch

from neotta.data.order import Order
from neotta.evaluate.answers import PredictionStats, RunResult, pack
from neotta.evaluate.records import Record


def packed(right, images=None, *, domain="fog/5", seed=1, batch_size=8, pool=None):
    """The entry `answers` of a record: whether each sample was right, and which image it was."""
    right = np.asarray(right, dtype=bool)
    images = np.arange(len(right)) if images is None else np.asarray(images)
    pool = pool or int(images.max()) + 1
    ids = tuple(str(image) for image in images)
    order = Order("made up", seed, (domain,), np.zeros(len(right), dtype=np.int64), images, ids, batch_size)
    labels = torch.zeros(len(right), dtype=torch.int64)
    predicted = torch.from_numpy((~right).astype(np.int64))
    result = RunResult(
        list(ids), [domain] * len(right), PredictionStats(labels, predicted, *[torch.zeros(len(right))] * 5)
    )
    return pack(result, order, lambda name: _Pool(pool))["answers"]


def records_of(right, domains, *, seeds=(1, 2, 3), images=400):
    """Records of methods that are right on the first images of each domain; every seed has its own images.

    Args:
        right: By method: the number of right answers in each domain.
        domains: Their names.
        seeds: The seeds.
        images: Number of images of a run.
    """
    records = []
    for (method, counts), seed in itertools.product(right.items(), seeds):
        for domain, count in zip(domains, counts, strict=True):
            about = {"key": f"{method} {domain} {seed}", "status": "ok", "model": "m", "data": "d", "weights": "w"}
            about |= {"method": method, "domain": domain, "domains": [domain], "seed": seed, "samples": images}
            about |= {"batch_size": 8, "count": images, "manifests": [f"{domain} {seed}"]}
            seen = np.arange(images) + images * seed
            about["answers"] = packed(np.arange(images) < count, seen, domain=domain, seed=seed)
            records.append(Record.make({**about, "metrics": {"top1": 100 * count / images}}))
    return records


class _Pool:
    """The ids of a dataset."""

    def __init__(self, size):
        self.ids = [str(place) for place in range(size)]

    def __len__(self):
        return len(self.ids)

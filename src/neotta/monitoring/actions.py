"""Set the centroid of a model after a change."""

from __future__ import annotations

import torch
from torch import Tensor

from neotta.monitoring.library import Domain
from neotta.monitoring.rank_evidence import Floats
from neotta.monitoring.targets import Target
from neotta.neo.centroid import Centroid


def apply_action(target: Target, mean: Tensor, worth: int, seen: Floats, variance: float) -> None:
    """Restart a model from a known centroid and the samples of the new domain.

    Args:
        target: The model.
        mean: The known centroid, (d,).
        worth: Number of samples it counts as; 0 to ignore it.
        seen: Samples of the new domain, (n, d); n may be 0.
        variance: Total variance of the new domain.
    """
    target.reset()
    start = Centroid(len(mean))
    start.set(mean, worth)
    start.update(torch.from_numpy(seen.copy()))
    count = int(start.count)
    if count == 0:
        return
    centroid = target.blank()
    if not isinstance(centroid, Centroid):  # a shift of logits cannot be set to a mean of embeddings
        return
    centroid.set(start.mean, count)
    if centroid.rule.variance:
        centroid.scatter.fill_(variance * (count - 1))
    target.put(centroid)


def worth(distance: float, variance: float, count: int, domain: Domain) -> int:
    """Number of samples that a known centroid counts as.

    The squared error of a mean of n samples is s²/n. That of the known centroid is estimated as its squared distance
    from the mean of the new samples, minus the error of that mean, and at least the error of its own mean.
    """
    least = variance / max(domain.count, 1)
    error = max(distance**2 - variance / count, least)
    return int(variance / error) if error > 0 else domain.count

"""Giving a model another centroid after a change."""

from __future__ import annotations

import torch
from torch import Tensor

from neotta.monitoring.library import Domain
from neotta.monitoring.rank_evidence import Floats
from neotta.monitoring.targets import Target
from neotta.neo.centroid import Centroid


def apply_action(target: Target, mean: Tensor, worth: int, seen: Floats, variance: float) -> None:
    """Give a model a centroid that counts as so many samples, together with samples it has seen.

    Args:
        target: The model.
        mean: The centroid, (d,).
        worth: As how many samples it counts; 0 for not at all.
        seen: Samples of the new domain, (n, d); n may be 0.
        variance: The total variance of the new domain.
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
    """As how many samples a known centroid counts.

    A mean of n samples misses by s²/n. The known one misses by its distance from the new samples' mean, less what that
    mean itself misses by; and at least by what its own samples leave open.
    """
    least = variance / max(domain.count, 1)
    error = max(distance**2 - variance / count, least)
    return int(variance / error) if error > 0 else domain.count

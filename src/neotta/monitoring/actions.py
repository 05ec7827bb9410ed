"""Set the centroid of a model after a change."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from neotta.monitoring.library import Domain
from neotta.monitoring.position import add_embeddings
from neotta.monitoring.rank_evidence import Floats
from neotta.monitoring.targets import Target
from neotta.neo.centroid import Centroid
from neotta.neo.memory import OneStreamMemory


def apply_action(
    target: Target, mean: Tensor, domain: Domain | None, worth: int, seen: Floats, variance: float
) -> None:
    """Restart a model from a known domain and the samples of the new one.

    Args:
        target: The model.
        mean: The centroid to start from if no sample of the new domain is known, (d,).
        domain: The known domain, if there is one.
        worth: Number of samples it counts as; 0 to ignore it.
        seen: Samples of the new domain, (n, d); n may be 0.
        variance: Total variance of the new domain.
    """
    target.reset()
    if not target.in_embeddings:
        target.put(_shifted(target, domain, worth, seen))
        return
    mean = mean if domain is None else domain.centroid
    start = Centroid(len(mean))
    start.set(mean, worth)
    start.update(torch.from_numpy(seen.copy()))
    count = int(start.count)
    if count == 0:
        return
    centroid = cast("Centroid", target.blank())
    centroid.set(start.mean, count)
    if centroid.rule.variance:
        centroid.scatter.fill_(variance * (count - 1))
    target.put(centroid)


def _shifted(target: Target, domain: Domain | None, worth: int, seen: Floats) -> OneStreamMemory:
    """The moments of a known domain, which count as `worth` samples, and those of new ones."""
    memory = target.blank()
    if domain is not None and domain.state is not None and worth > 0:
        known = target.blank()
        state = {name: tensor.clone() for name, tensor in domain.state.items()}
        scale = worth / max(float(state["weight"][0]), 1e-9)
        for name in ("weight", "squares", "second", "third", "predicted", "peak", "trust"):
            state[name] *= min(scale, 1.0)
        state["count"].fill_(min(worth, int(state["count"])))
        known.load_state(state)
        memory.merge(known)
    add_embeddings(memory, target.neo, seen)
    return memory


def worth(distance: float, variance: float, count: int, domain: Domain) -> int:
    """Number of samples that a known centroid counts as.

    The squared error of a mean of n samples is s²/n. That of the known centroid is estimated as its squared distance
    from the mean of the new samples, minus the error of that mean, and at least the error of its own mean.
    """
    least = variance / max(domain.count, 1)
    error = max(distance**2 - variance / count, least)
    return int(variance / error) if error > 0 else domain.count

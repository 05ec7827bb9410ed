"""What one replica has added to a centroid that several of them share, as a message to the others."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from neotta.errors import StateError
from neotta.neo.centroid import Centroid


@dataclass(frozen=True)
class Record:
    """What a replica says: everything it has ever taken in itself, never what others have.

    So a record replaces the older ones of the same replica, and it does no harm to read one twice or late.

    Attributes:
        model: What model this belongs to; records of others are refused.
        start: What state the replica started from; it is the same for all.
        epoch: How often the replicas were reset. Only the newest epoch counts.
        round: The number of the exchange it was written for.
        done: The replica will write no more.
        own: What it has taken in.
    """

    model: str
    start: str
    epoch: int
    round: int
    done: bool
    own: Mapping[str, Mapping[str, Tensor]]

    def encode(self) -> bytes:
        """The record as bytes (safetensors)."""
        from safetensors.torch import save

        about = {name: getattr(self, name) for name in ("model", "start", "epoch", "round", "done")}
        tensors = {f"{head} {key}": tensor for head, part in self.own.items() for key, tensor in part.items()}
        # JSON as a tensor: reading bytes back gives no metadata.
        tensors["about"] = torch.frombuffer(bytearray(json.dumps(about).encode()), dtype=torch.uint8)
        encoded: bytes = save(tensors)
        return encoded

    @classmethod
    def decode(cls, content: bytes) -> Record:
        """Read what `encode` wrote."""
        from safetensors.torch import load

        tensors = load(content)
        about: dict[str, Any] = json.loads(bytes(tensors.pop("about").numpy()))
        own: dict[str, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            head, key = name.rsplit(" ", 1)
            own.setdefault(head, {})[key] = tensor
        return cls(**about, own=own)


def empty(centroid: Centroid) -> Centroid:
    """A new centroid of the same rule, on the CPU."""
    return Centroid(centroid.features, weighting=centroid.weighting, variance=centroid.variance)


def copied(centroid: Centroid, state: Mapping[str, Tensor] | None = None) -> Centroid:
    """A copy of a centroid, or one of the same rule with this state, on the CPU."""
    copy = empty(centroid)
    copy.load_state(centroid.state() if state is None else state)
    return copy


def summed(centroids: Iterable[Centroid], like: Centroid) -> Centroid:
    """Merge centroids, always in the order given: equal numbers on every machine, to the last bit."""
    total = empty(like)
    for centroid in centroids:
        total.merge(centroid)
    return total


@torch.no_grad()
def difference(now: Centroid, before: Centroid) -> Centroid:
    """What has to be merged into `before` to give `now`.

    The division magnifies the rounding of the means, but merging it again reduces it by the same factor.

    Raises:
        StateError: There is less now than before.
    """
    delta = empty(now)
    for name in ("count", "batches", "rejected"):
        getattr(delta, name).copy_(getattr(now, name) - getattr(before, name))
    by = "batches" if now.weighting == "batch" else "count"
    mine, more = int(getattr(before, by)), int(getattr(delta, by))
    if more < 0 or int(delta.count) < 0 or int(delta.batches) < 0:
        raise StateError(
            f"the centroid had {int(before.count)} samples at the last exchange and has {int(now.count)} now: it was "
            "reset or loaded meanwhile. Reset all replicas with neotta.sync(model).reset(), or close() it first"
        )
    if more:
        delta.mean.copy_(before.mean + (now.mean - before.mean) * ((mine + more) / more))
        if now.variance:
            between = (delta.mean - before.mean).square().sum() * (mine * more / (mine + more))
            delta.scatter.copy_((now.scatter - before.scatter - between).clamp(min=0))
    return delta

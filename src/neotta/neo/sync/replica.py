"""What one replica has added to a centroid that several of them share, as a message to the others."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from neotta.errors import StateError
from neotta.neo.moments import Moments, difference
from neotta.neo.rules import MeanRule


@dataclass(frozen=True)
class Message:
    """What a replica publishes: everything it has ever taken in itself, never what others have.

    So a message replaces the older ones of the same replica, and it does no harm to read one twice or late.

    Attributes:
        model: What model this belongs to; messages of others are refused.
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
        """The message as bytes (safetensors)."""
        from safetensors.torch import save

        about = {name: getattr(self, name) for name in ("model", "start", "epoch", "round", "done")}
        tensors = {f"{head} {key}": tensor for head, part in self.own.items() for key, tensor in part.items()}
        # JSON as a tensor: reading bytes back gives no metadata.
        tensors["about"] = torch.frombuffer(bytearray(json.dumps(about).encode()), dtype=torch.uint8)
        encoded: bytes = save(tensors)
        return encoded

    @classmethod
    def decode(cls, content: bytes) -> Message:
        """Read what `encode` wrote."""
        from safetensors.torch import load

        tensors = load(content)
        about: dict[str, Any] = json.loads(bytes(tensors.pop("about").numpy()))
        own: dict[str, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            head, key = name.rsplit(" ", 1)
            own.setdefault(head, {})[key] = tensor
        return cls(**about, own=own)


def empty(like: Moments) -> Moments:
    """Moments of no samples, on the CPU."""
    return Moments(*(torch.zeros_like(column, device="cpu") for column in like))


def copied(moments: Moments | Mapping[str, Tensor]) -> Moments:
    """A copy, on the CPU."""
    columns = moments if isinstance(moments, Moments) else Moments(**moments)
    return Moments(*(column.detach().to("cpu", copy=True) for column in columns))


def summed(parts: Iterable[Moments], like: Moments, rule: MeanRule) -> Moments:
    """Merge moments, always in the order given: equal numbers on every machine, to the last bit."""
    total = empty(like)
    for part in parts:
        rule.merge(total, part)
    return total


def gained(now: Moments, before: Moments, by: str) -> Moments:
    """What has to be merged into `before` to give `now`.

    Raises:
        StateError: There is less now than before.
    """
    if bool(now.count < before.count) or bool(now.batches < before.batches):
        raise StateError(
            f"the centroid had {int(before.count)} samples at the last exchange and has {int(now.count)} now: it was "
            "reset or loaded meanwhile. Reset all replicas with neotta.sync(model).reset(), or close() it first"
        )
    return difference(now, before, by)

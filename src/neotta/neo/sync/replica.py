"""Messages between replicas: what each has added to the shared centroid."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from neotta.errors import StateError
from neotta.neo.memory import OneStreamMemory
from neotta.neo.rules import Rule


@dataclass(frozen=True)
class Message:
    """Everything a replica has seen itself, without what the others have seen.

    A message replaces the older ones of the same replica, so reading it late or twice is harmless.

    Attributes:
        model: Identifies the model; must be the same for all replicas.
        start: Identifies the starting state; must be the same for all replicas.
        epoch: Number of resets so far. Only the newest epoch counts.
        round: Number of the exchange.
        done: Whether this is the replica's last message.
        own: The moments of what it has seen, by head.
    """

    model: str
    start: str
    epoch: int
    round: int
    done: bool
    own: Mapping[str, Mapping[str, Tensor]]

    def encode(self) -> bytes:
        """Encode the message as bytes (safetensors)."""
        from safetensors.torch import save

        about = {name: getattr(self, name) for name in ("model", "start", "epoch", "round", "done")}
        tensors = {f"{head} {key}": tensor for head, part in self.own.items() for key, tensor in part.items()}
        # JSON as a tensor, because safetensors loads no metadata from bytes.
        tensors["about"] = torch.frombuffer(bytearray(json.dumps(about).encode()), dtype=torch.uint8)
        encoded: bytes = save(tensors)
        return encoded

    @classmethod
    def decode(cls, content: bytes) -> Message:
        """Decode a message."""
        from safetensors.torch import load

        tensors = load(content)
        about: dict[str, Any] = json.loads(bytes(tensors.pop("about").numpy()))
        own: dict[str, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            head, key = name.rsplit(" ", 1)
            own.setdefault(head, {})[key] = tensor
        return cls(**about, own=own)


def empty(like: Any) -> Any:
    """Moments of no samples, on the CPU; `like` has their kind and shapes."""
    return type(like)(*(torch.zeros_like(column, device="cpu") for column in like))


def copied(state: Any) -> Any:
    """Return a copy of moments on the CPU."""
    return type(state)(*(column.detach().to("cpu", copy=True) for column in state))


def moments_of(memory: OneStreamMemory) -> Any:
    """Return a copy of a memory's moments on the CPU."""
    return copied(memory.rule.State(**memory.state()))


def summed(parts: Iterable[Any], like: Any, rule: Rule) -> Any:
    """Merge moments in the given order, so that the result is bitwise equal on every machine."""
    total = empty(like)
    for part in parts:
        rule.merge(total, part)
    return total


def gained(now: Any, before: Any, rule: Rule) -> Any:
    """The moments that, merged into `before`, give `now`.

    Raises:
        StateError: There are fewer samples than before.
    """
    if bool(now.count < before.count) or bool(now.batches < before.batches):
        raise StateError(
            f"the model had {int(before.count)} samples at the last exchange and has {int(now.count)} now: it was "
            "reset or loaded in between. Reset all replicas with neotta.sync(model).reset(), or close() it first"
        )
    return rule.difference(now, before)

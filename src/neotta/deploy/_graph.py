"""The adaptive graph: a model whose centroid comes in and goes out with every call."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from neotta.neo.find_head import logits_of
from neotta.neo.head import NEOHead
from neotta.neo.module_swap import ModuleSwap


class SwitchedHead(nn.Module):
    """A NEO head whose adapting is switched by a tensor, which a graph can take as an input."""

    adapt: Tensor

    def __init__(self, neo: NEOHead) -> None:
        super().__init__()
        self.neo = neo
        self.register_buffer("adapt", torch.tensor(True, device=neo.weight.device), persistent=False)

    def forward(self, input: Tensor) -> Tensor:
        """Take in, re-center and classify; (..., d) to (..., C)."""
        centroid = self.neo.centroid
        before = centroid.state()
        centroid.update(input.reshape(-1, self.neo.in_features))
        for name, buffer in centroid.named_buffers():
            buffer.copy_(torch.where(self.adapt, buffer, before[name]))
        return self.neo.classify(self.neo.recenter(input))


class AdaptiveGraph(nn.Module):
    """Images and state to logits and state; nothing is kept in the module.

    Args:
        model: A model with NEO heads. It has `SwitchedHead`s in their places for as long as `within` is entered.
        heads: Its NEO heads by name.
    """

    def __init__(self, model: nn.Module, heads: dict[str, NEOHead]) -> None:
        super().__init__()
        self.model = model
        self.carried = [(name, entry) for name, neo in heads.items() for entry in neo.centroid.rule.remembers]
        self._switched = {name: SwitchedHead(neo) for name, neo in heads.items()}
        self.within = ModuleSwap(model, {neo: self._switched[name] for name, neo in heads.items()})

    def forward(self, images: Tensor, adapt: Tensor, state: list[Tensor]) -> tuple[Tensor, ...]:
        """Run the model with the state of the caller.

        Args:
            images: (B, 3, H, W).
            adapt: Whether the batch enters the centroid, () bool.
            state: The entries of `carried`.

        Returns:
            Logits (B, C), the entries of `carried` after the call, and for each head how many rows were kept out.
        """
        given = dict(zip(self.carried, state, strict=True))
        buffers: dict[str, Any] = {}
        for name, head in self._switched.items():
            buffers[f"{name}.adapt"] = adapt
            for entry, own in head.neo.memory.named_buffers():
                # In the graph the state is float32: some runtimes have nothing better.
                blank = torch.zeros_like(own, dtype=torch.float32 if own.is_floating_point() else own.dtype)
                buffers[f"{name}.neo.memory.{entry}"] = given.get((name, entry), blank).clone()
        logits = logits_of(functional_call(self.model, buffers, (images,)))
        after = [buffers[f"{name}.neo.memory.{entry}"] for name, entry in self.carried]
        return logits, *after, *(buffers[f"{name}.neo.memory.rejected"] for name in self._switched)

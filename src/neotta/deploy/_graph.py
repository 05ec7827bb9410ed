"""The adaptive graph: a model that takes and returns its centroid with every call."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from neotta.neo.find_head import logits_of
from neotta.neo.head import NEOHead
from neotta.neo.module_swap import ModuleSwap


class SwitchedHead(nn.Module):
    """A NEO head that a tensor, and so an input of a graph, switches between adapting or not."""

    adapt: Tensor

    def __init__(self, neo: NEOHead) -> None:
        super().__init__()
        self.neo = neo
        self.register_buffer("adapt", torch.tensor(True, device=neo.weight.device), persistent=False)

    def forward(self, input: Tensor) -> Tensor:
        """Adapt, re-center and classify; (..., d) to (..., C)."""
        centroid = self.neo.centroid
        before = centroid.state()
        centroid.update(input.reshape(-1, self.neo.in_features))
        for name, buffer in centroid.named_buffers():
            buffer.copy_(torch.where(self.adapt, buffer, before[name]))
        return self.neo.classify(self.neo.recenter(input))


class AdaptiveGraph(nn.Module):
    """Maps images and state to logits and state; the module is stateless.

    Args:
        model: A model with NEO heads, which are replaced by `SwitchedHead`s inside the context `within`.
        heads: Its NEO heads by name.
    """

    def __init__(self, model: nn.Module, heads: dict[str, NEOHead]) -> None:
        super().__init__()
        self.model = model
        self.carried = [(name, entry) for name, neo in heads.items() for entry in neo.centroid.rule.remembers]
        self._switched = {name: SwitchedHead(neo) for name, neo in heads.items()}
        self.within = ModuleSwap(model, {neo: self._switched[name] for name, neo in heads.items()})

    def forward(self, images: Tensor, adapt: Tensor, state: list[Tensor]) -> tuple[Tensor, ...]:
        """Run the model with a given state.

        Args:
            images: (B, 3, H, W).
            adapt: Whether to add the batch to the centroid, () bool.
            state: The entries of `carried`.

        Returns:
            Logits (B, C), the new entries of `carried`, and for each head the number of rows excluded.
        """
        given = dict(zip(self.carried, state, strict=True))
        buffers: dict[str, Any] = {}
        for name, head in self._switched.items():
            buffers[f"{name}.adapt"] = adapt
            for entry, own in head.neo.memory.named_buffers():
                # The graph uses float32, because some runtimes have nothing better.
                blank = torch.zeros_like(own, dtype=torch.float32 if own.is_floating_point() else own.dtype)
                buffers[f"{name}.neo.memory.{entry}"] = given.get((name, entry), blank).clone()
        logits = logits_of(functional_call(self.model, buffers, (images,)))
        after = [buffers[f"{name}.neo.memory.{entry}"] for name, entry in self.carried]
        return logits, *after, *(buffers[f"{name}.neo.memory.rejected"] for name in self._switched)

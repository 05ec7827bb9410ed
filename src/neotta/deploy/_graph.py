"""The adaptive graph: a model that takes and returns its state with every call."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.func import functional_call

from neotta.deploy._packing import PACKED, pack, unpack
from neotta.neo import moments
from neotta.neo.class_means import ClassMeans
from neotta.neo.find_head import logits_of
from neotta.neo.head import NEOHead
from neotta.neo.memory import OneStreamMemory
from neotta.neo.module_swap import ModuleSwap
from neotta.neo.rules import MeanRule
from neotta.neo.stream_rule import StreamRule
from neotta.neo.traced_stream import TracedStream

_LARGEST = 1e10  # sums of third powers of logits fit into float32


class SwitchedHead(nn.Module):
    """A NEO head that a tensor, and so an input of a graph, switches between adapting or not."""

    adapt: Tensor

    def __init__(self, neo: NEOHead) -> None:
        super().__init__()
        self.neo = neo
        self.last: Tensor | None = None
        self._rule = neo.memory.rule
        if isinstance(self._rule, StreamRule) and self._rule.classes is not None:
            means = _BufferedMeans(self._rule.classes, self, neo.weight.detach().float())
            self._rule = dataclasses.replace(self._rule, classes=means)
        self.register_buffer("adapt", torch.tensor(True, device=neo.weight.device), persistent=False)

    def forward(self, input: Tensor) -> Tensor:
        """Adapt, re-center and classify; (..., d) to (..., C)."""
        if self.neo.memory.rule.space == "logits":
            logits = self.neo.classify(input)
            rows = logits.reshape(-1, self.neo.out_features)
            answer: Tensor = logits - self._shift(rows).reshape(logits.shape)
            self.last = None if is_compiling() else answer.detach()
            return answer
        centroid = self.neo.centroid
        before = centroid.state()
        rows, origin = input.reshape(-1, self.neo.in_features), self._origin
        centroid.update(rows if origin is None else rows - origin)
        for name, buffer in centroid.named_buffers():
            buffer.copy_(torch.where(self.adapt, buffer, before[name]))
        return self.neo.classify(self.neo.recenter(input))

    @property
    def _origin(self) -> Tensor | None:
        """Where clean data lies, as embeddings (d,) or as logits (C,), if there is a reference."""
        return cast(Tensor | None, self.neo.origin)

    def _shift(self, rows: Tensor) -> Tensor:
        """Adapt to logits, (N, C), with a rule on logits, and return what to subtract from them, (N, C)."""
        memory = cast(OneStreamMemory, self.neo.memory)
        groups, before = TracedStream(rows.shape[0]), memory.moments()
        state = type(before)(*(column[None] for column in before))
        bias = self.neo.bias if self._origin is None else self._origin
        given = {
            "finite": moments.usable(rows, _LARGEST),
            "bias": rows.new_zeros(rows.shape[1]) if bias is None else bias,
        }
        after, learnt = self._rule.take(state, rows, groups, **given, adapt=True)
        _, stored = self._rule.take(state, rows, groups, **given, adapt=False)
        for column, values in zip(before, after, strict=True):
            column.copy_(torch.where(self.adapt, values[0], column))
        return torch.where(self.adapt, learnt, stored)


class _BufferedMeans(ClassMeans):
    """Class means in the buffers of a module, which a trace turns into constants of the graph."""

    def __init__(self, known: ClassMeans, owner: nn.Module, like: Tensor) -> None:
        super().__init__(known.prior, known.deviations, known.peak, known.free)
        self._owner = owner
        self._names = [f"clean_{number}" for number in range(4)]
        for name, tensor in zip(self._names, known.on(like), strict=True):
            owner.register_buffer(name, tensor, persistent=False)

    def on(self, like: Any) -> tuple[Any, Any, Any, Any]:
        """What the buffers hold now: in a trace, values of the graph."""
        prior, deviations, spread, free = (self._owner.get_buffer(name) for name in self._names)
        return prior, deviations, spread, free


def carried(neo: NEOHead) -> tuple[str, ...]:
    """The inputs of the graph for the state of a head; `PACKED` stands for all real fields."""
    rule = neo.memory.rule
    return rule.remembers if isinstance(rule, MeanRule) else (PACKED, "count")


def entry_of(neo: NEOHead, entry: str) -> Tensor:
    """The value of such an input for a head, in the dtype of the graph."""
    memory = cast(OneStreamMemory, neo.memory)
    state = memory.state()
    value: Tensor = pack(memory.rule.fields(memory.features), state) if entry == PACKED else state[entry]
    return value.float() if value.is_floating_point() else value


class AdaptiveGraph(nn.Module):
    """Maps images and state to logits and state; the module is stateless.

    Args:
        model: A model with NEO heads, which are replaced by `SwitchedHead`s inside the context `within`.
        heads: Its NEO heads by name.
    """

    def __init__(self, model: nn.Module, heads: dict[str, NEOHead]) -> None:
        super().__init__()
        self.model = model
        self.carried = [(name, entry) for name, neo in heads.items() for entry in carried(neo)]
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
            fields = head.neo.memory.rule.fields(head.neo.memory.features)
            entries = unpack(fields, given[name, PACKED]) if (name, PACKED) in given else {}
            for entry, own in head.neo.memory.named_buffers():
                # The graph uses float32, because some runtimes have nothing better.
                blank = torch.zeros_like(own, dtype=torch.float32 if own.is_floating_point() else own.dtype)
                value = entries.get(entry, given.get((name, entry), blank))
                buffers[f"{name}.neo.memory.{entry}"] = value.clone()
        logits = logits_of(functional_call(self.model, buffers, (images,)))
        after = [self._after(buffers, name, entry) for name, entry in self.carried]
        return logits, *after, *(buffers[f"{name}.neo.memory.rejected"] for name in self._switched)

    def _after(self, buffers: dict[str, Any], head: str, entry: str) -> Tensor:
        """An entry of `carried` after a call."""
        prefix = f"{head}.neo.memory."
        if entry != PACKED:
            return cast(Tensor, buffers[prefix + entry])
        memory = self._switched[head].neo.memory
        mine = {name.removeprefix(prefix): value for name, value in buffers.items() if name.startswith(prefix)}
        return cast(Tensor, pack(memory.rule.fields(memory.features), mine))

    def at_output(self, logits: Tensor) -> bool:
        """Whether the last call returned the output of its only head, not something made of it."""
        last = [head.last for head in self._switched.values()]
        return len(last) == 1 and last[0] is not None and torch.equal(last[0], logits)

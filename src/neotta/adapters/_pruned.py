"""Linear layers that remember only the largest part of their input for the backward pass, to save memory."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

MANY = 2**18
"""From so many numbers on it pays to let numpy select on a CPU: it is ten times as fast as torch."""


class PrunedLinear(nn.Linear):
    """A linear layer whose weight gradient is computed from the largest entries of its input.

    Output and gradient by the input are exact; the bias gets no gradient. Make one with `pruned_linear`.

    Attributes:
        ratio: Which part of the input is forgotten, from 0 (nothing) to 1.
        elements: How many numbers the inputs since the last time that this was set to 0 have had.
    """

    ratio: float
    elements: int

    def forward(self, input: Tensor) -> Tensor:
        """Multiply and add; input (..., in), output (..., out)."""
        self.elements += input.numel()
        return _Multiply.apply(input, self.weight, self.bias, self.ratio)  # type: ignore[no-any-return, no-untyped-call]


def pruned_linear(layer: nn.Linear) -> PrunedLinear:
    """Make the stand-in for a linear layer; it shares the layer's parameters and hooks."""
    new = PrunedLinear.__new__(PrunedLinear)
    new.__dict__.update(layer.__dict__, _parameters=layer._parameters.copy(), ratio=0.0, elements=0)
    return new


def linear_layers(model: nn.Module) -> list[nn.Linear]:
    """The linear layers of a model that compute nothing but a product with a weight of their own."""
    return [
        module
        for module in model.modules()
        if isinstance(module, nn.Linear)
        and type(module).forward is nn.Linear.forward
        and "weight" in module._parameters
    ]


class _Multiply(torch.autograd.Function):
    """The layer's product, with a memory that is pruned."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None, ratio: float) -> Tensor:
        ctx.shape = input.shape
        ctx.save_for_backward(weight, *prune(input, ratio))
        return functional.linear(input, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        weight, kept, bits = ctx.saved_tensors
        grad = grads[0].to(weight.dtype)  # they differ under autocast
        by_input = grad @ weight if ctx.needs_input_grad[0] else None
        by_weight = None
        if ctx.needs_input_grad[1]:
            input = restore(kept, bits, ctx.shape).to(weight.dtype)
            by_weight = grad.reshape(-1, len(weight)).T @ input.reshape(-1, weight.shape[1])
        return by_input, by_weight, None, None


def prune(input: Tensor, ratio: float) -> tuple[Tensor, Tensor]:
    """The entries of largest magnitude of a tensor, in as little memory as they take.

    Args:
        input: Any shape, n numbers in all.
        ratio: Which part of them is forgotten.

    Returns:
        The k = floor(n (1 - ratio)) largest in their order, (k,), without those of them that are zero; and one bit
        for each of the n that says whether it is among them, (ceil(n / 8),) bytes. If that would take no less memory
        than the tensor: all of it, zero where forgotten, in its own shape, and no bits. If nothing is left: no
        numbers and no bits.
    """
    count = math.floor(input.numel() * (1 - ratio))
    nothing = torch.empty(0, dtype=torch.uint8, device=input.device)
    if count >= input.numel():
        return input, nothing
    if count == 0:
        return input.new_empty(0), nothing
    flat = input.flatten()
    chosen = largest(flat, count)
    if count * flat.itemsize + len(flat) // 8 + 1 > flat.nbytes:
        return torch.where(chosen, flat, 0).reshape(input.shape), nothing
    return flat.index_select(0, positions(chosen)), pack(chosen)


def restore(kept: Tensor, bits: Tensor, shape: torch.Size) -> Tensor:
    """The tensor that `prune` took apart, with zeros for what was forgotten."""
    if not len(bits):
        return kept if kept.numel() else kept.new_zeros(shape)
    where = positions(unpack(bits, shape.numel()))
    return kept.new_zeros(shape.numel()).index_copy_(0, where, kept).reshape(shape)


def pack(chosen: Tensor) -> Tensor:
    """Eight booleans to a byte, (n,) to (ceil(n / 8),)."""
    parts = functional.pad(chosen, (0, -len(chosen) % 8)).view(torch.uint8).reshape(8, -1)
    bits = parts[0].clone()
    for place in range(1, 8):
        bits |= parts[place] << place
    return bits


def unpack(bits: Tensor, count: int) -> Tensor:
    """Back to booleans, (count,)."""
    parts = torch.empty(8, len(bits), dtype=torch.uint8, device=bits.device)
    for place in range(8):
        torch.bitwise_and(bits >> place, 1, out=parts[place])
    return parts.view(torch.bool).flatten()[:count]


def positions(chosen: Tensor) -> Tensor:
    """Where booleans are true, (n,) to (k,); numpy is several times as fast as torch on a CPU."""
    return torch.from_numpy(np.flatnonzero(chosen.numpy())) if chosen.is_cpu else chosen.nonzero().flatten()


def largest(values: Tensor, count: int) -> Tensor:
    """Which entries have the largest magnitude, as booleans, (n,); `count` of them, but zeros may be left out."""
    magnitude = values.detach().abs()
    if len(values) < MANY or not values.is_cpu:
        where = magnitude.topk(count, sorted=False).indices
        return torch.zeros_like(values, dtype=torch.bool).index_fill_(0, where, True)
    sizes = (magnitude.float() if magnitude.itemsize < 4 else magnitude).numpy()
    least = np.partition(sizes, len(sizes) - count)[len(sizes) - count]
    chosen = sizes >= least if least > 0 else sizes > 0
    surplus = int(np.count_nonzero(chosen)) - count
    if surplus > 0:  # several are the least: the first of them
        chosen[np.flatnonzero(sizes == least)[-surplus:]] = False
    return torch.from_numpy(chosen)

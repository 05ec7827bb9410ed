"""Linear layers that remember only the largest part of their input for the backward pass, to save memory."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional


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
        weight, kept, where = ctx.saved_tensors
        grad = grads[0].to(weight.dtype)  # they differ under autocast
        by_input = grad @ weight if ctx.needs_input_grad[0] else None
        by_weight = None
        if ctx.needs_input_grad[1]:
            input = restore(kept, where, ctx.shape).to(weight.dtype)
            by_weight = grad.flatten(0, -2).T @ input.flatten(0, -2)
        return by_input, by_weight, None, None


def prune(input: Tensor, ratio: float) -> tuple[Tensor, Tensor]:
    """The entries of largest magnitude of a tensor, in as little memory as they take.

    Args:
        input: Any shape, n numbers in all.
        ratio: Which part of them is forgotten.

    Returns:
        k numbers and where they were in the flattened tensor, (k,) each, k = floor(n (1 - ratio)) or less if some of
        those are zero. If that would take no less memory than the tensor: all n, zero where forgotten, and no
        positions, (0,).
    """
    count = math.floor(input.numel() * (1 - ratio))
    nowhere = torch.empty(0, dtype=torch.int32, device=input.device)
    if count >= input.numel():
        return input, nowhere
    flat = input.flatten()
    where = largest(flat, count)
    kept = flat[where]
    short = where.int() if input.numel() < 2**31 else where
    if len(kept) * (kept.itemsize + short.itemsize) < flat.numel() * flat.itemsize:
        return kept, short
    return torch.zeros_like(flat).index_copy_(0, where, kept), nowhere


def restore(kept: Tensor, where: Tensor, shape: torch.Size) -> Tensor:
    """The tensor that `prune` took apart, with zeros for what was forgotten."""
    if kept.numel() == shape.numel():
        return kept.reshape(shape)
    return kept.new_zeros(shape.numel()).index_copy_(0, where.long(), kept).reshape(shape)


def largest(values: Tensor, count: int) -> Tensor:
    """Where the entries of largest magnitude are, (n,) to (count,) or fewer: zeros carry nothing and are left out."""
    magnitude = values.detach().abs()
    if values.is_cpu and count:  # numpy selects ten times as fast as torch
        sizes = (magnitude.float() if magnitude.itemsize < 4 else magnitude).numpy()
        least = np.partition(sizes, len(sizes) - count)[len(sizes) - count]
        where = np.flatnonzero(sizes >= least if least > 0 else sizes > 0)
        if len(where) <= count:
            return torch.from_numpy(where)
    return magnitude.topk(count, sorted=False).indices  # which has a choice, where several are the least

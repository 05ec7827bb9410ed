"""Linear layers and convolutions that store only the largest entries of their input for the backward pass."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from neotta.adapters import _largest

PIECE = 2**20
"""How many numbers are put back at a time, about."""


class PrunedLinear(nn.Linear):
    """A linear layer whose weight gradient is computed from the largest entries of its input.

    Output and gradient by the input are exact; the bias gets no gradient. Make one with `pruned_linear`.

    Attributes:
        ratio: The share of the input that is discarded, from 0 to 1.
        elements: Number of input elements since it was last set to 0.
    """

    ratio: float
    elements: int

    def forward(self, input: Tensor) -> Tensor:
        """Multiply and add; input (..., in), output (..., out)."""
        self.elements += input.numel()
        return _Multiply.apply(input, self.weight, self.bias, self.ratio)  # type: ignore[no-any-return, no-untyped-call]


class PrunedConv2d(nn.Conv2d):
    """A convolution whose weight gradient is computed from the largest entries of its input.

    What is exact, what is not, and the attributes are those of `PrunedLinear`. Make one with `pruned_layer`.
    """

    ratio: float
    elements: int

    def forward(self, input: Tensor) -> Tensor:
        """Convolve; input (B, in, H, W), output (B, out, h, w)."""
        self.elements += input.numel()
        shape = (self.stride, self.padding, self.dilation, self.groups)
        return _Convolve.apply(input, self.weight, self.bias, self.ratio, shape)  # type: ignore[no-any-return, no-untyped-call]


PrunedLayer = PrunedLinear | PrunedConv2d


def pruned_layer(layer: nn.Linear | nn.Conv2d) -> PrunedLayer:
    """Make the replacement of a layer; it shares the layer's parameters and hooks."""
    kind: type[PrunedLayer] = PrunedLinear if isinstance(layer, nn.Linear) else PrunedConv2d
    new = kind.__new__(kind)
    new.__dict__.update(layer.__dict__, _parameters=layer._parameters.copy(), ratio=0.0, elements=0)
    return new


def prunable_layers(model: nn.Module) -> list[nn.Linear | nn.Conv2d]:
    """The plain linear layers and convolutions of a model with a weight of their own, in the model's order.

    A single convolution is the patch embedding of a transformer, which is left alone as in the recorded runs.
    """
    convolutions = sum(isinstance(module, nn.Conv2d) for module in model.modules())
    kinds = (nn.Linear, nn.Conv2d) if convolutions > 1 else (nn.Linear,)
    return [module for module in model.modules() if isinstance(module, kinds) and _is_plain(module)]


def _is_plain(module: nn.Linear | nn.Conv2d) -> bool:
    """Whether a layer computes what its kind does, and so can be replaced."""
    kind = nn.Linear if isinstance(module, nn.Linear) else nn.Conv2d
    padded = isinstance(module, nn.Conv2d) and (module.padding_mode != "zeros" or isinstance(module.padding, str))
    return type(module).forward is kind.forward and "weight" in module._parameters and not padded


class _Multiply(torch.autograd.Function):
    """The layer's product, which stores a pruned input."""

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
            by_weight, grad, start = torch.zeros_like(weight), grad.reshape(-1, len(weight)), 0
            for rows in restored(kept, bits, ctx.shape):
                by_weight.addmm_(grad[start : start + len(rows)].T, rows.to(weight.dtype))
                start += len(rows)
        return by_input, by_weight, None, None


class _Convolve(torch.autograd.Function):
    """The layer's convolution, which stores a pruned input."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None, ratio: float, shape: Any) -> Tensor:
        ctx.input_shape, ctx.shape = input.shape, shape
        ctx.save_for_backward(weight, *prune(input, ratio))
        return functional.conv2d(input, weight, bias, *shape)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        weight, kept, bits = ctx.saved_tensors
        grad = grads[0].to(weight.dtype)  # they differ under autocast
        rows = [part.clone() for part in restored(kept, bits, ctx.input_shape)] if len(bits) else []
        input = torch.cat(rows) if rows else kept if kept.numel() else weight.new_zeros(ctx.input_shape)
        stride, padding, dilation, groups = ctx.shape
        wanted = [*ctx.needs_input_grad[:2], False]
        by_input, by_weight, _ = torch.ops.aten.convolution_backward(
            grad, input.view(ctx.input_shape).to(weight.dtype), weight, None, stride, padding, dilation, False, [0, 0],
            groups, wanted,
        )  # fmt: skip
        return by_input, by_weight, None, None, None


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
    taken = _largest.take(input.flatten(), count)
    if count * input.itemsize + input.numel() // 8 + 1 > input.nbytes:
        return torch.cat([rows.clone() for rows in restored(*taken, input.shape)]).view(input.shape), nothing
    return taken


def restored(kept: Tensor, bits: Tensor, shape: torch.Size) -> Iterator[Tensor]:
    """The tensor that `prune` took apart, with zeros for what was forgotten.

    Args:
        kept: From `prune`.
        bits: From `prune`.
        shape: Of the tensor, (..., d).

    Yields:
        Its rows in their order, (some, d); what is yielded is valid until the next.
    """
    width = shape[-1]
    if len(bits):
        size = 8 * max(PIECE // (8 * width), 1) * width
        for piece in _largest.put_back(kept, bits, shape.numel(), size):
            yield piece.view(-1, width)
    elif kept.numel():
        yield kept.reshape(-1, width)

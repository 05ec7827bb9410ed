"""Heads that amount to linear layers: 1x1 convolutions and cosine classifiers."""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from neotta.neo.head import NEOHead
from neotta.neo.module_swap import Unregistered


class HeadView(nn.Linear):
    """A layer seen as a linear one: `view(view.embed(input))` are the logits. It refers to the layer itself."""

    def __init__(self, layer: nn.Module, in_features: int, out_features: int) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features, self.training = in_features, out_features, layer.training
        self._layer = Unregistered(layer)

    @property
    def layer(self) -> nn.Module:
        """The layer of the model."""
        return self._layer.module

    def embed(self, input: Tensor) -> Tensor:
        """The embeddings, (B, d), in the input of the layer."""
        raise NotImplementedError


class ConvolutionView(HeadView):
    """A 1x1 convolution whose output, (B, C, H, W), is averaged: the same as averaging its input first."""

    def __init__(self, layer: nn.Conv2d) -> None:
        super().__init__(layer, layer.in_channels, layer.out_channels)

    @property
    def weight(self) -> nn.Parameter:  # type: ignore[override]
        """(C, d), in the memory of the convolution's."""
        own: Tensor = self.layer.weight  # type: ignore[assignment]
        return nn.Parameter(own.detach().flatten(1), requires_grad=False)

    @property
    def bias(self) -> Tensor | None:  # type: ignore[override]
        """(C,), or None."""
        return self.layer.bias  # type: ignore[return-value]

    def embed(self, input: Tensor) -> Tensor:
        """Average over all positions, (B, d, H, W) to (B, d)."""
        return input.flatten(2).mean(dim=2)


class CosineView(HeadView):
    """A layer that returns `scale` times the cosine between its input and the rows of its weight.

    The embeddings are the normalised ones, on which it is linear.
    """

    bias = None  # type: ignore[assignment]

    def __init__(self, layer: nn.Module, parameter: str, transposed: bool, scale: float) -> None:
        shape = layer.get_parameter(parameter).shape
        super().__init__(layer, shape[0 if transposed else 1], shape[1 if transposed else 0])
        self.parameter, self.transposed, self.scale = parameter, transposed, scale

    @property
    def weight(self) -> nn.Parameter:  # type: ignore[override]
        """The rows, (C, d), all of length `scale`."""
        own = self.layer.get_parameter(self.parameter).detach()
        return nn.Parameter(self.scale * F.normalize(own.T if self.transposed else own, dim=1), requires_grad=False)

    def embed(self, input: Tensor) -> Tensor:
        """Normalise, (B, d) to (B, d)."""
        return F.normalize(input, dim=1)


Head: TypeAlias = nn.Linear | nn.Conv2d
"""What `find_heads` finds: a linear layer, a 1x1 convolution, or a `CosineView`."""


def linear_view(head: Head) -> nn.Linear:
    """A head as a linear layer."""
    return ConvolutionView(head) if isinstance(head, nn.Conv2d) else head


def layer_of(head: nn.Module) -> nn.Module:
    """The layer of the model that a head is, or is a view of."""
    return head.layer if isinstance(head, HeadView) else head


def embeddings_of(head: nn.Module, input: Tensor) -> Tensor:
    """The embeddings, (B, d), in the input of the layer of a head."""
    if isinstance(head, HeadView):
        return head.embed(input)
    return input.mean(dim=(2, 3)) if isinstance(head, nn.Conv2d) else input


def is_pointwise(module: nn.Module) -> bool:
    """Whether this is a convolution that is a linear layer at every position."""
    if type(module).forward is not nn.Conv2d.forward:
        return False
    plain = {"kernel_size": (1, 1), "stride": (1, 1), "padding": (0, 0), "groups": 1}
    return all(getattr(module, name) == value for name, value in plain.items())


def cosine_view(layer: nn.Module, input: Tensor | None, output: Tensor) -> CosineView | None:
    """The layer as a cosine classifier, if that is how it computed this output from this input, (B, d)."""
    if input is None or input.dim() != 2 or output.dim() != 2:
        return None
    for name, parameter in layer.named_parameters(recurse=False):
        for transposed in (False, True):
            weight = parameter.T if transposed and parameter.dim() == 2 else parameter
            if weight.shape != (output.shape[1], input.shape[1]):
                continue
            cosines = F.normalize(exact(input), dim=1) @ F.normalize(exact(weight), dim=1).T
            scale = float((exact(output) * cosines).sum() / cosines.square().sum())
            if scale > 0 and close(scale * cosines, output):
                return CosineView(layer, name, transposed, scale)
    return None


def exact(tensor: Tensor) -> Tensor:
    """The numbers in float64, on the CPU, since not every device has it."""
    tensor = tensor.detach().cpu()
    return (tensor.dequantize() if tensor.is_quantized else tensor).double()


def close(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal but for the rounding of the second, relative to the largest number."""
    coarse = torch.finfo(other.dtype).eps ** 0.5 / 3
    one, other = exact(one), exact(other)
    finite = other[other.isfinite()].abs()
    largest = float(finite.max()) if finite.numel() else 0.0
    return one.shape == other.shape and torch.allclose(one, other, rtol=0, atol=coarse * largest, equal_nan=True)


class NEOConvHead(NEOHead):
    """A drop-in 1x1 `nn.Conv2d` that re-centers its input, as `NEOHead` does; `weight` keeps its shape (C, d, 1, 1).

    The embedding of a sample is the average over all positions, (B, d, H, W) to (B, d). Every position is shifted
    alike, so the logits are re-centered whether the network averages before this layer or after it.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Re-center and classify: (B, d, H, W) to (B, C, H, W)."""
        pooled = input.mean(dim=(-2, -1))
        logits = super().forward(pooled)
        if input.shape[-2:] == (1, 1):
            return logits[..., None, None]
        shift = logits - F.linear(pooled, self.weight.flatten(1))
        return F.conv2d(input, self.weight) + shift[..., None, None]

    def _plain(self) -> nn.Conv2d:  # type: ignore[override]
        return nn.Conv2d(self.in_features, self.out_features, 1, device="meta", dtype=self.weight.dtype)

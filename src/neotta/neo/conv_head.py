"""NEO as a 1x1 convolution, for networks whose head is one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from neotta.neo.head import NEOHead, share_hooks
from neotta.neo.head_views import ConvolutionView, Head, layer_of
from neotta.neo.memory import Memory
from neotta.neo.stream_ids import StreamId
from neotta.options import Options

if TYPE_CHECKING:
    from neotta.neo.reference_file import HeadReference

Self = TypeVar("Self", bound="NEOConvHead")


class NEOConvHead(NEOHead):
    """A drop-in 1x1 `nn.Conv2d` that re-centers its input, as `NEOHead` does; `weight` keeps its shape (C, d, 1, 1).

    The embedding of a sample is the average over all positions, (B, d, H, W) to (B, d). Every position is shifted
    alike, so the logits are re-centered whether the network averages before this layer or after it.
    """

    @classmethod
    def from_linear(cls: type[Self], linear: nn.Linear, **options: Any) -> Self:
        """Create a head that shares the parameters, hooks and mode of a 1x1 convolution.

        Args:
            linear: A view of the convolution, or another such head.
            **options: See `NEOHead.from_linear`.
        """
        layer = layer_of(linear)
        head = super().from_linear(linear, **options)
        head.weight, head.bias = layer.weight, layer.bias  # type: ignore[assignment]
        share_hooks(layer, head)
        return head

    def alone(self, stream: StreamId) -> NEOHead:
        """Return a head whose only centroid is a copy of one stream's."""
        return type(self).from_linear(
            self, memory=self.streams.centroid(stream), uniform_bias=self.uniform_bias, reference=self.reference
        )

    def forward(self, input: Tensor) -> Tensor:
        """Re-center and classify: (B, d, H, W) to (B, C, H, W)."""
        pooled = input.mean(dim=(-2, -1))
        logits = super().forward(pooled)
        if input.shape[-2:] == (1, 1):
            return logits[..., None, None]
        shift = logits - F.linear(pooled, self.weight.flatten(1))
        return F.conv2d(input, self.weight) + shift[..., None, None]

    def classify(self, embeddings: Tensor) -> Tensor:
        """Apply only the linear layer, (..., d) to (..., C)."""
        weight = self.weight.flatten(1)
        if not self.uniform_bias:
            return F.linear(embeddings, weight, self.bias)
        return F.linear(embeddings, weight) + 1.0 / self.out_features

    @torch.no_grad()
    @torch.inference_mode(False)
    def folded(self, stream: StreamId | None = None) -> nn.Module:  # type: ignore[override]
        """Return a plain convolution with the bias b - W c: it predicts as this head does now (for one stream)."""
        plain = nn.Conv2d(self.in_features, self.out_features, 1, device="meta", dtype=self.weight.dtype)
        return self._fold_into(plain, stream)


def neo_head(
    layer: Head, method: str, options: Options, memory: Memory | None = None, reference: HeadReference | None = None
) -> NEOHead:
    """Create the head of a variant of NEO for a linear layer or a 1x1 convolution."""
    if isinstance(layer, nn.Conv2d):
        return NEOConvHead.variant(ConvolutionView(layer), method, options, memory, reference)
    return NEOHead.variant(layer, method, options, memory, reference)

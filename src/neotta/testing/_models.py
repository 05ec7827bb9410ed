"""Tiny classifiers of the main kinds, for images of (B, 3, 32, 32) and seven classes; torch is all they need."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CLASSES = 7


def batch_norm() -> nn.Module:
    """A convolutional network with BatchNorm."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 12, 3, 2), nn.BatchNorm2d(12), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, CLASSES),
    )  # fmt: skip


class GroupNormNetwork(nn.Module):
    """A network with GroupNorm whose head has an unusual name."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 4, 4)
        self.group = nn.GroupNorm(2, 8)
        self.mix = nn.Linear(8, 12)
        self.out = nn.Linear(12, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Logits, (B, 7)."""
        logits: Tensor = self.out(torch.relu(self.mix(self.group(self.stem(images)).mean(dim=(2, 3)))))
        return logits


class Block(nn.Module):
    """A transformer block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, tokens: Tensor) -> Tensor:
        """Attend and mix, (B, T, width) to the same."""
        batch, length, width = tokens.shape
        qkv = self.qkv(self.norm1(tokens)).view(batch, length, 3, self.heads, width // self.heads)
        mixed = F.scaled_dot_product_attention(*qkv.permute(2, 0, 3, 1, 4).unbind())
        tokens = tokens + self.proj(mixed.transpose(1, 2).reshape(batch, length, width))
        return tokens + self.mlp(self.norm2(tokens))  # type: ignore[no-any-return]


class VisionTransformer(nn.Module):
    """A vision transformer whose head reads the class token."""

    def __init__(self, width: int = 16, depth: int = 2, heads: int = 2) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, 8)
        self.cls_token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.pos_embed = nn.Parameter(torch.randn(1, 17, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Logits, (B, 7)."""
        patches = self.patches(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.cls_token.expand(len(images), -1, -1), patches], dim=1) + self.pos_embed
        logits: Tensor = self.head(self.norm(self.blocks(tokens)[:, 0]))
        return logits


MODELS: dict[str, Callable[[], nn.Module]] = {
    "vit": VisionTransformer,
    "batch-norm": batch_norm,
    "group-norm": GroupNormNetwork,
}
"""Small models of three kinds, by name: functions that build them with random weights."""

"""A small ViT in float64 that is sure of some images and not of others, and batches for it."""

from __future__ import annotations

import torch

import neotta.testing


def confident_vit():
    torch.manual_seed(0)
    model = neotta.testing.MODELS["vit"]().double().eval()
    with torch.no_grad():
        model.head.weight.mul_(8)  # an untrained head is sure of nothing
    return model


def batches(count, size=8, seed=1):
    random = torch.Generator().manual_seed(seed)
    return [torch.randn(size, 3, 32, 32, generator=random, dtype=torch.float64) for _ in range(count)]


def entropies(logits):
    return -(logits.softmax(1) * logits.log_softmax(1)).sum(1)

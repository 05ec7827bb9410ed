"""A small classifier of random pictures, to measure references on."""

from __future__ import annotations

import torch
from torch import nn

CLASSES, WIDTH = 5, 12


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 4 * 4, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES))
    with torch.no_grad():
        model[3].weight *= 6
    return model.eval()


def pictures(count: int = 200, seed: int = 1, shift: float = 0.0) -> torch.Tensor:
    return torch.randn(count, 3, 4, 4, generator=torch.Generator().manual_seed(seed)) * 2 + shift

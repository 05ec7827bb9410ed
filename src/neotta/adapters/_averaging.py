"""Averages of weights: a teacher that follows a student, weights that are drawn back to the source."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


@torch.no_grad()
def move_towards(weights: Mapping[str, Tensor], goal: Mapping[str, Tensor], share: float) -> None:
    """Move tensors, in place, by a share of the way to those of the same names."""
    for name, tensor in weights.items():
        tensor.lerp_(goal[name].detach(), share)

"""Where the current domain lies: the vector that a model should subtract there."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from neotta.monitoring.rank_evidence import Floats
from neotta.neo.centroid import Centroid
from neotta.neo.head import NEOHead
from neotta.neo.memory import OneStreamMemory


class Position(Protocol):
    """An estimate of the vector to subtract, from the embeddings of a domain."""

    def add(self, rows: Floats) -> None:
        """Add embeddings, (n, d)."""

    def vector(self) -> Tensor:
        """The vector, float64."""

    def count(self) -> int:
        """Number of samples."""

    def variance(self) -> float:
        """Total variance of a sample; NaN for fewer than two."""


class MeanPosition:
    """The mean of the embeddings, (d,), which NEO subtracts."""

    def __init__(self, features: int) -> None:
        self.centroid = Centroid(features, variance=True)

    def add(self, rows: Floats) -> None:
        """Add embeddings, (n, d)."""
        self.centroid.update(torch.from_numpy(rows.copy()))

    def vector(self) -> Tensor:
        """The mean, (d,)."""
        return self.centroid.mean.clone()

    def count(self) -> int:
        """Number of samples."""
        return int(self.centroid.count)

    def variance(self) -> float:
        """Total variance of the embeddings."""
        return float(self.centroid.total_variance()) if self.count() > 1 else math.nan


class ShiftPosition:
    """The shift of the logits, (C,), that NEO-Stream estimates: labels alone do not move it.

    Args:
        head: The head, whose weights and rule are used.
    """

    def __init__(self, head: NEOHead) -> None:
        self._head = head
        self.memory: OneStreamMemory = head.memory.blank().cpu()

    def add(self, rows: Floats) -> None:
        """Add embeddings, (n, d)."""
        add_embeddings(self.memory, self._head, rows)

    def vector(self) -> Tensor:
        """The shift, (C,)."""
        return self.memory.value(torch.float64)

    def count(self) -> int:
        """Number of samples."""
        return self.memory.total()

    def variance(self) -> float:
        """Total variance of the logits."""
        state = self.memory.moments()
        return float(state.second[0].sum() / state.weight[0]) if self.count() > 1 else math.nan


def add_embeddings(memory: OneStreamMemory, head: NEOHead, rows: Floats) -> None:
    """Add embeddings, (n, d), to a memory of logits, as the head does."""
    if len(rows) == 0:
        return
    origin = head._buffers["origin"]
    bias = (head.bias if origin is None else origin) if head.bias is not None or origin is not None else None
    known = None if bias is None else bias.detach().double().cpu()
    own = None if head.bias is None else head.bias.detach().double().cpu()
    logits = F.linear(torch.from_numpy(rows.copy()), head.weight.detach().double().cpu(), own)
    memory.step(logits, len(rows), bias=known)

"""NEO: the running mean of the embeddings is subtracted before the head.

Paper: "NEO: No-Optimization Test-Time Adaptation through Latent Re-Centering" (ICLR 2026).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from neotta.errors import OptionError
from neotta.neo.state import TALLIES, Field, Rule, taken

Weighting = Literal["sample", "batch"]
Shrinkage = Literal["james-stein"]
_TINY = 1e-12


class MeanState(NamedTuple):
    """The fields of the states of K streams of embeddings."""

    tallies: Tensor  # see `Layout`, (K, 3)
    weight: Tensor  # sum of the weights of samples or batches, (K,)
    square: Tensor  # weighted sum of the squared lengths of samples, (K,); only for shrinkage
    total: Tensor  # weighted sum of the samples, or of the means of batches, (K, d): the mean is total / weight


@dataclass(frozen=True)
class MeanRule(Rule):
    """Subtract the running mean of the embeddings.

    - `weighting="sample"`: every sample counts equally (NEO);
    - `weighting="batch"`: every batch counts equally (the pseudo-code printed in the paper);
    - `alpha=a`: an exponential moving average of batch means (NEO-Continual). It starts at zero; `debias=True`
      corrects the bias towards that start.

    Raises:
        OptionError: Shrinkage is combined with another average.
    """

    space = "embeddings"

    weighting: Weighting = "sample"
    alpha: float | None = None  # weight of a new batch in a moving average, in [0, 1]
    debias: bool = False  # divide the moving average by 1 - (1 - alpha)^t
    shrinkage: Shrinkage | None = None  # `"james-stein"` scales the mean down while few samples have been seen

    def __post_init__(self) -> None:
        if self.shrinkage and (self.alpha is not None or self.weighting != "sample"):
            raise OptionError("shrinkage depends on the number of samples: it needs weighting='sample' and no alpha")

    @property
    def mergeable(self) -> bool:
        """Whether states can be merged: a moving average depends on the order of its batches."""
        return self.alpha is None

    def fields(self, size: int) -> dict[str, Field]:
        """See `MeanState`."""
        return {"weight": Field(least=0.0), "square": Field(least=0.0), "total": Field((size,))}

    def state(self, states: Tensor) -> MeanState:
        """The fields of states, as views."""
        return MeanState._make(self.layout(states.shape[1] - len(TALLIES) - 2).split(states))

    def update(self, states: Tensor, rows: Tensor, weights: Tensor | None, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Learn from embeddings, (K, T, d), and return what to subtract, (K, 1, d); see `Rule`."""
        tallies, weight, square, total = self.state(states)
        rows, weights, counted, rejected = taken(rows, weights)
        batch, mass, any_counted = (weights[:, None] @ rows)[:, 0], weights.sum(1), counted.amax(1)
        if self.alpha is not None:
            share = self.alpha * any_counted
            total = torch.lerp(total, batch / mass.clamp(min=_TINY)[:, None], share[:, None])
            weight = weight + share * (1 - weight)
        elif self.weighting == "batch":
            total, weight = total + batch / mass.clamp(min=_TINY)[:, None], weight + any_counted
        else:
            total, weight = total + batch, weight + mass
        if self.shrinkage is not None:
            square = square + (weights * (rows * rows).sum(-1)).sum(1)
        tallies = tallies + torch.stack([counted, rejected, torch.zeros_like(counted)], -1).sum(1)
        states = torch.cat([tallies, weight[:, None], square[:, None], total], 1)
        return states, self.offset(states)[:, None]

    def offset(self, states: Tensor) -> Tensor:
        """The mean, (K, d), shrunk if so asked."""
        _, weight, square, total = self.state(states)
        if self.alpha is not None and not self.debias:
            return total
        n = weight.clamp(min=_TINY)
        mean = total / n[:, None]
        if self.shrinkage is None:
            return mean
        signal = (mean * mean).sum(-1)
        noise = (square / n - signal) / (n - 1).clamp(min=_TINY)
        factor = (1 - noise / signal.clamp(min=_TINY)).clamp(min=0.0) * (weight > 1)
        return factor[:, None] * mean

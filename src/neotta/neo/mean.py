"""NEO: the running mean of the embeddings is subtracted before the head.

Paper: "NEO: No-Optimization Test-Time Adaptation through Latent Re-Centering" (ICLR 2026).
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, Literal, NamedTuple

import torch
from pydantic import Field as Option
from pydantic import model_validator
from torch import Tensor

from neotta.errors import OptionError
from neotta.neo.codec import Field
from neotta.neo.norms import Statistics
from neotta.neo.state import TALLIES, Rule, taken

_TINY = 1e-12


class MeanState(NamedTuple):
    """The fields of the states of K streams of embeddings."""

    tallies: Tensor  # see `Layout`, (K, 3)
    weight: Tensor  # sum of the weights of samples or batches, (K,)
    square: Tensor  # weighted sum of the squared lengths of samples, (K,); only for shrinkage
    total: Tensor  # weighted sum of the samples, or of the means of batches, (K, d): the mean is total / weight


class AnyMean(Rule):
    """Subtract an average of the embeddings."""

    space = "embeddings"

    def fields(self, size: int) -> dict[str, Field]:
        """See `MeanState`."""
        return {"weight": Field(least=0.0), "square": Field(least=0.0), "total": Field((size,))}

    def state(self, states: Tensor) -> MeanState:
        """The fields of states, as views."""
        return MeanState._make(self.layout(states.shape[1] - len(TALLIES) - 2).split(states))

    def update(self, states: Tensor, rows: Tensor, weights: Tensor | None, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Learn from embeddings, (K, T, d), and return what to subtract, (K, 1, d); see `Rule`."""
        state = self.state(states)
        rows, weights, counted, rejected = taken(rows.to(states.dtype), weights)
        weight, square, total = self._learnt(state, rows, weights, counted.amax(1))
        tallies = state.tallies + torch.stack([counted, rejected, torch.zeros_like(counted)], -1).sum(1)
        states = torch.cat([tallies, weight[:, None], square[:, None], total], 1)
        return states, self.offset(states)[:, None]

    @abstractmethod
    def _learnt(
        self, state: MeanState, rows: Tensor, weights: Tensor, any_counted: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The weight, the square and the total after more rows, (K, T, d) of weights, (K, T)."""


class MeanRule(AnyMean):
    """Subtract the mean of all embeddings so far (NEO)."""

    weighting: Literal["sample", "batch"] = Option(
        default="sample",
        description='"sample" counts every sample equally, "batch" every batch (the paper\'s pseudo-code).',
    )
    shrinkage: Literal["james-stein"] | None = Option(
        default=None, description='"james-stein" scales the mean down while few samples have been seen.'
    )

    @model_validator(mode="after")
    def _checked(self) -> MeanRule:
        if self.shrinkage and self.weighting != "sample":
            raise OptionError("shrinkage depends on the number of samples: it needs weighting='sample'")
        return self

    def _learnt(
        self, state: MeanState, rows: Tensor, weights: Tensor, any_counted: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        batch, mass, square = (weights[:, None] @ rows)[:, 0], weights.sum(1), state.square
        if self.weighting == "batch":
            batch, mass = batch / mass.clamp(min=_TINY)[:, None], any_counted
        if self.shrinkage is not None:
            square = square + (weights * (rows * rows).sum(-1)).sum(1)
        return state.weight + mass, square, state.total + batch

    def offset(self, states: Tensor) -> Tensor:
        """The mean, (K, d), shrunk if so asked."""
        _, weight, square, total = self.state(states)
        n = weight.clamp(min=_TINY)
        mean = total / n[:, None]
        if self.shrinkage is None:
            return mean
        signal = (mean * mean).sum(-1)
        noise = (square / n - signal) / (n - 1).clamp(min=_TINY)
        factor = (1 - noise / signal.clamp(min=_TINY)).clamp(min=0.0) * (weight > 1)
        return factor[:, None] * mean


class NormsRule(MeanRule):
    """Subtract the mean of the embeddings, in a model whose BatchNorm layers adapt too (NEO-BN; see `norms`)."""

    presets: ClassVar = {"paper": {"statistics": "batch"}, "original": {"statistics": "batch"}}

    statistics: Statistics = Option(
        default="ema",
        description='"ema" normalises with a moving average that starts at the stored statistics, "batch" with the '
        "current batch, which must be large.",
    )
    momentum: float = Option(default=0.05, ge=0, le=1, description="Weight of 16 images in the moving average.")

    @property
    def mergeable(self) -> bool:
        """Whether states can be merged."""
        return self.statistics != "ema"


class MovingMeanRule(AnyMean):
    """Subtract an exponential moving average of the means of batches (NEO-Continual), which starts at zero."""

    alpha: float = Option(default=0.1, ge=0, le=1, description="Weight of a new batch in the moving average.")
    debias: bool = Option(default=False, description="Correct the bias of the moving average towards its zero start.")

    @property
    def mergeable(self) -> bool:
        """Whether states can be merged: a moving average depends on the order of its batches."""
        return False

    def _learnt(
        self, state: MeanState, rows: Tensor, weights: Tensor, any_counted: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        mean = (weights[:, None] @ rows)[:, 0] / weights.sum(1).clamp(min=_TINY)[:, None]
        share = self.alpha * any_counted
        total = torch.lerp(state.total, mean, share[:, None])
        return state.weight + share * (1 - state.weight), state.square, total

    def offset(self, states: Tensor) -> Tensor:
        """The moving average, (K, d): divided by 1 - (1 - alpha)^t for t batches if it is debiased."""
        state = self.state(states)
        return state.total / state.weight.clamp(min=_TINY)[:, None] if self.debias else state.total

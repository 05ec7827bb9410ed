"""Gradient steps on one batch: the options and the loop that methods with a loss of their own share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from pydantic import Field, model_validator
from torch import Tensor

from neotta.adapters._optimizers import Betas, Epsilon, LearningRate, Momentum, WeightDecay
from neotta.adapters.gradient import GradientAdapter
from neotta.options import Options


class OptimizerOptions(Options):
    """Options of methods that train with SGD or Adam."""

    optimizer: Literal["sgd", "adam"] = Field("sgd", description="The optimiser.")
    lr: LearningRate = 1e-3
    momentum: Momentum = 0.9
    nesterov: bool = Field(False, description="Whether SGD uses Nesterov momentum.")
    betas: Betas = (0.9, 0.999)
    eps: Epsilon = 1e-8
    weight_decay: WeightDecay = 0.0

    @model_validator(mode="after")
    def _nesterov_is_possible(self) -> OptimizerOptions:
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov needs a momentum above 0")
        return self


class StepOptions(OptimizerOptions):
    """Options of methods that take gradient steps on a batch."""

    steps: int = Field(
        1, ge=1, description="Gradient steps per batch; the answer is that of the last repetition, before its step."
    )


class Objective(NamedTuple):
    """What a batch asks for.

    Attributes:
        loss: A scalar with a graph.
        commit: Called after the step, and only if it was taken, to move running quantities.
    """

    loss: Tensor
    commit: Callable[[], None] = lambda: None


def take_steps(
    adapter: GradientAdapter[Any],
    images: Tensor,
    objective: Callable[[Tensor, Tensor], Objective | None],
    count: int = 1,
) -> tuple[Tensor, bool]:
    """Predict a batch and take steps on it; one that leads to NaN or Inf changes nothing.

    Args:
        adapter: Whose tensors are trained.
        images: (B, 3, H, W).
        objective: From images and their logits, (B, C), to the objective; None if there is nothing to learn.
        count: The number of steps.

    Returns:
        The logits of the last pass before its step, and whether the batch could be learnt from.
    """
    for _ in range(count):
        with torch.enable_grad():
            logits = adapter.forward(images)
            if not adapter.usable(logits):
                return logits.detach(), False
            wanted = objective(images, logits)
            if wanted is None:
                break
            grads = adapter.gradients(wanted.loss)
        if not adapter.step(grads, len(logits)):
            return logits.detach(), False
        wanted.commit()
    return logits.detach(), True

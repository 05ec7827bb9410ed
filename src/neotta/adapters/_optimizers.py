"""Adam and SGD: their options, their initial state, and whether a step stays in range."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

import torch
from pydantic import BeforeValidator, Field, Strict
from torch import Tensor

from neotta.options import Options


def _two(value: Any) -> Any:
    if isinstance(value, (list, tuple)) and len(value) != 2:
        raise ValueError("two numbers were expected")
    return value


Beta = Annotated[float, Field(ge=0, lt=1)]
Betas = Annotated[
    tuple[Beta, Beta], Strict(False), BeforeValidator(_two), Field(description="The two decay rates of Adam.")
]
Epsilon = Annotated[float, Field(gt=0, description="Epsilon of Adam.")]
LearningRate = Annotated[float, Field(ge=0, description="Learning rate.")]
Momentum = Annotated[float, Field(ge=0, lt=1, description="Momentum of SGD.")]
WeightDecay = Annotated[float, Field(ge=0, description="Weight decay.")]


def make_optimizer(kind: str, params: list[Tensor], options: Options) -> torch.optim.Optimizer:
    """Adam or SGD, by name, with those of its settings that a method has as options."""
    adam = kind == "adam"
    names = ("lr", "betas", "eps", "weight_decay") if adam else ("lr", "momentum", "nesterov", "weight_decay")
    given = {name: value for name, value in options.given().items() if name in names}
    return torch.optim.Adam(params, **given) if adam else torch.optim.SGD(params, **given)


def start_state(optimizer: torch.optim.Optimizer) -> None:
    """Create the state that the optimiser would create at its first step, so that it can be saved and loaded."""
    for group in optimizer.param_groups:
        for tensor in group["params"]:
            state: dict[str, Any] = {}
            if isinstance(optimizer, torch.optim.Adam):
                state["step"] = torch.zeros((), dtype=torch.float32)
                state["exp_avg"] = torch.zeros_like(tensor, requires_grad=False)
                state["exp_avg_sq"] = torch.zeros_like(tensor, requires_grad=False)
            elif group.get("momentum"):
                state["momentum_buffer"] = torch.zeros_like(tensor, requires_grad=False)
            optimizer.state[tensor] = state


def rate(group: Mapping[str, Any]) -> float:
    """The largest factor by which Adam or SGD may multiply a direction; it is largest at Adam's first step."""
    return float(group["lr"]) / (1 - float(group.get("betas", (0.0, 0.0))[0]))


def limit(dtype: torch.dtype) -> float:
    """The magnitude above which weights are useless, since the product of two overflows."""
    return math.sqrt(torch.finfo(dtype).max)


def stays_in_range(group: Mapping[str, Any], magnitude: float, dtype: torch.dtype) -> bool:
    """Whether a step of Adam or SGD certainly stays in range, so that no copies are needed to undo it.

    Args:
        group: The settings of the optimiser.
        magnitude: Of the largest of gradients, weights and moving averages.
        dtype: Of the weights.
    """
    direction = (3 + 2 * float(group["weight_decay"])) * max(1.0, magnitude)  # with decay, momentum and looking ahead
    # Below the root of the largest number, so that Adam can square the direction.
    return direction * (1 + rate(group) / float(group.get("eps", 1.0))) < limit(dtype)

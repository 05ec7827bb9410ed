"""Choosing the samples of a batch that are worth learning from."""

from __future__ import annotations

import math
from typing import Annotated, NamedTuple

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

EntropyMargin = Annotated[float, Field(ge=0)]


class Selection(NamedTuple):
    """Masks over a batch, (B,) each: the reliable samples, and those of them that are learnt from."""

    reliable: Tensor
    selected: Tensor


def entropy_margin(given: float | None, classes: int, share: float = 0.4) -> float:
    """The margin E0 in nats: as given, or a share of the largest entropy, ln C."""
    return share * math.log(classes) if given is None else given


def surer_weigh_more(uncertainty: Tensor, margin: float) -> Tensor:
    """exp(E0 - h) for each sample, (B,), as a constant."""
    return (margin - uncertainty.detach()).exp()


def redundant_to(mean: Tensor, probabilities: Tensor, margin: float) -> Tensor:
    """Which predictions, (B, C), point in about the direction of the mean prediction, (C,)."""
    cosine = functional.cosine_similarity(mean.to(probabilities).unsqueeze(0), probabilities, dim=1)
    return ~(cosine.abs() < margin)


def undefined(classes: int, like: Tensor) -> Tensor:
    """A running mean prediction before the first batch: NaN, (C,)."""
    return torch.full((classes,), math.nan, dtype=like.dtype, device=like.device)


def average(mean: Tensor, new: Tensor, kept: float) -> None:
    """Move a running mean, (C,), which starts at its first value."""
    mean.copy_(new if bool(mean.isnan().any()) else kept * mean + (1 - kept) * new)

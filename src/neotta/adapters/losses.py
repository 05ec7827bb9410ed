"""What is minimised over a batch, and which samples are learnt from.

COME: Zhang et al., "COME: Test-time Adaption by Conservatively Minimizing Entropy", ICLR 2025.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from neotta.options import Options

SMALL = 1e-7
"""Added to each belief and to the uncertainty of COME, which are not normalised again."""

EntropyMargin = Annotated[float, Field(ge=0)]


def entropy(logits: Tensor) -> Tensor:
    """Entropy of the softmax of each row, (B, C) to (B,), in nats."""
    log = logits.log_softmax(dim=1)
    return -(log.exp() * log).sum(dim=1)


class UncertaintyOptions(Options):
    uncertainty: Literal["entropy", "come"] = Field(
        "entropy",
        description='What is minimised, and what samples are filtered by: the "entropy" of the softmax, or that of '
        'subjective opinions ("come"), which lets a model stay unsure.',
    )
    evidence_classes: Annotated[int, Field(ge=1)] | None = Field(
        None,
        description='K of "come", the weight of not knowing; None is the number of classes. 1000 is what the published '
        "code has, whatever the number of classes (come_thousand_classes in recorded runs).",
    )

    def of(self, logits: Tensor) -> Tensor:
        """The uncertainty of each sample, (B, C) to (B,)."""
        if self.uncertainty == "entropy":
            return entropy(logits)
        return opinion_entropy(logits, self.evidence_classes or logits.shape[1])


def opinion_entropy(logits: Tensor, prior: float) -> Tensor:
    """Entropy of the opinions that logits stand for, (B, C) to (B,).

    The evidence for each class is exp(logit), and `prior` (K) is the weight of not knowing. The gradient sees the
    direction of the logits only, not their length.
    """
    length = logits.norm(dim=1, keepdim=True)
    fixed = torch.where(length > 0, length.detach() / length.clamp_min(torch.finfo(logits.dtype).tiny), 1.0)
    evidence = logits * fixed
    unknown = torch.full_like(length.detach(), math.log(prior))
    opinions = torch.cat([evidence, unknown], dim=1).softmax(dim=1) + SMALL  # softmax subtracts the largest first
    return -(opinions * opinions.log()).sum(dim=1)


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy of each prediction against that of `target`, both logits, (B, C) to (B,)."""
    return -(target.softmax(dim=1) * logits.log_softmax(dim=1)).sum(dim=1)


class Selection(NamedTuple):
    """Masks over a batch, (B,) each: the reliable samples, and those of them that are learnt from."""

    reliable: Tensor
    selected: Tensor


def entropy_margin(margin: float | None, classes: int, share: float = 0.4) -> float:
    """The margin E0 in nats: as given, or a share of the largest entropy, ln C."""
    return share * math.log(classes) if margin is None else margin


def surer_weigh_more(uncertainty: Tensor, margin: float) -> Tensor:
    """exp(E0 - h) for each sample, (B,), as a constant."""
    return (margin - uncertainty.detach()).exp()

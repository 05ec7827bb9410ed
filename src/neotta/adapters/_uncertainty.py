"""What is minimised over a batch: the entropy of the softmax, or COME's entropy of opinions.

COME: Zhang et al., "COME: Test-time Adaption by Conservatively Minimizing Entropy", ICLR 2025.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from neotta.adapters.gradient import entropy
from neotta.options import Options

SMALL = 1e-7
"""Added to each belief and to the uncertainty, which are not normalised again."""


class UncertaintyOptions(Options):
    """Options of methods that minimise an entropy."""

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

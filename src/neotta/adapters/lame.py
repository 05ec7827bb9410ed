"""LAME: correct the predictions of a batch jointly, so that similar samples get similar predictions.

Paper: Boudiaf et al., "Parameter-free Online Test-time Adaptation", CVPR 2022.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from neotta.adapters._methods import register
from neotta.adapters.base import EmbeddingAdapter
from neotta.adapters.declaration import Declaration
from neotta.neo.state import widest
from neotta.options import Options

Affinity = Literal["knn", "rbf", "linear"]

SMALLEST_LOG = math.log(1e-20)
CONVERGED = 1e-8


class LAMEOptions(Options):
    presets: ClassVar = {"original": {"affinity": "rbf", "symmetrise": False}}

    affinity: Affinity = Field(
        "knn",
        description='How similarity is measured: "knn" (1 for the nearest neighbours, 0 for others), "rbf" (falls with '
        'the squared distance) or "linear" (cosine).',
    )
    knn: int = Field(
        5, ge=1, description='Number of neighbours; for "rbf", the neighbour whose mean distance is the width.'
    )
    symmetrise: bool = Field(True, description="Average the affinity with its transpose.")
    lambda_: float = Field(1.0, ge=0, description="Weight of the affinity.")
    max_iterations: int = Field(100, ge=1, description="Largest number of iterations.")


@register
class LAME(EmbeddingAdapter[LAMEOptions]):
    """Laplacian adjustment of the predictions of each batch; nothing is remembered.

    It computes probabilities and returns their logarithm, as every method returns logits.
    """

    name = "lame"
    title = "LAME"
    paper = "Parameter-free Online Test-time Adaptation, CVPR 2022"
    declaration = Declaration(needs="embeddings", hyperparameter_free=True)
    Options = LAMEOptions

    def _start(self) -> None:
        pass

    def _embeddings(self, embeddings: Tensor, adapt: bool) -> Tensor:
        logits = self.classify(embeddings)
        wide = torch.promote_types(logits.dtype, torch.float32)
        plain = logits.log_softmax(dim=1, dtype=wide)
        if not adapt:
            return plain.to(logits.dtype)
        finite = self.finite_rows(plain)  # NaN or Inf in an embedding shows in its logits
        if bool(finite.all()):
            return self._refine(plain, embeddings.to(wide)).to(logits.dtype)
        if bool(finite.any()):
            plain[finite] = self._refine(plain[finite], embeddings[finite].to(wide))
        return plain.to(logits.dtype)

    def _refine(self, plain: Tensor, embeddings: Tensor) -> Tensor:
        """Minimise the Laplacian objective by its fixed-point iteration: log-probabilities, (B, C), to the same."""
        chosen = self.options
        unary = (plain.exp() + 1e-10).log()
        answer, before = unary.log_softmax(dim=1), math.inf
        shares = answer.exp()
        with torch.autocast(plain.device.type, enabled=False):  # distances suffer from half precision
            weights = affinity(F.normalize(embeddings, dim=1, eps=1e-12), chosen.affinity, chosen.knn)
            if chosen.symmetrise:
                weights = (weights + weights.T) / 2
            for iteration in range(chosen.max_iterations):
                pairwise = chosen.lambda_ * (weights @ shares)
                answer = (unary + pairwise).log_softmax(dim=1)
                shares = answer.exp()
                # The published objective, which counts lambda twice; it only decides when to stop.
                cost = answer.clamp(min=SMALLEST_LOG) - unary - chosen.lambda_ * pairwise
                energy = float((cost * shares).sum(dtype=widest(plain.device)))
                if iteration > 1 and abs(energy - before) <= CONVERGED * abs(before):
                    break
                before = energy
        return answer


def affinity(directions: Tensor, kind: Affinity, knn: int) -> Tensor:
    """How similar samples are, (B, B), by embeddings of length 1, (B, d); row i is what others mean to sample i."""
    cosine = directions @ directions.T
    if kind == "linear":
        return cosine
    length = cosine.diagonal()
    squared = (length.unsqueeze(1) + length - 2 * cosine).clamp(min=0)
    size = len(directions)
    if kind == "rbf":
        squared.fill_diagonal_(0)
        width = squared.kthvalue(min(knn, size), dim=1).values.sqrt().mean()
        return torch.exp(-squared / (2 * width.square()).clamp(min=torch.finfo(squared.dtype).tiny))
    # A sample is not its own neighbour, even if another one is identical to it.
    nearest = squared.fill_diagonal_(math.inf).topk(min(knn, size - 1), largest=False).indices
    return torch.zeros_like(squared).scatter_(1, nearest, 1.0)

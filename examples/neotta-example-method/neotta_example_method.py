"""Prior: predict a class less readily the more often it was predicted."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from neotta.adapters import Declaration, EmbeddingAdapter, Options, register


class PriorOptions(Options):
    """Options of Prior."""

    strength: float = Field(1.0, ge=0, description="How far predictions are corrected; 0 is not at all.")


@register
class Prior(EmbeddingAdapter[PriorOptions]):
    """Divide the predicted distribution by the share of each class so far."""

    name = "prior"
    title = "Prior"
    paper = "an example"
    declaration = Declaration(needs="embeddings", optimization_free=True)
    Options = PriorOptions

    total: Tensor

    def _start(self) -> None:
        dtype = torch.promote_types(self.head.weight.dtype, torch.float32)
        self.add_state("total", self.head.weight.new_ones(self.num_classes, dtype=dtype))

    def _embeddings(self, embeddings: Tensor, adapt: bool) -> Tensor:
        logits = self.classify(embeddings)
        if adapt:
            finite = self.finite_rows(logits)
            self.total += logits[finite].softmax(dim=1, dtype=self.total.dtype).sum(dim=0)
        shares = self.total / self.total.sum()
        return logits - self.options.strength * shares.log().to(logits.dtype)

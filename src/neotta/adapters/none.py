"""No adaptation: the model as it is, to compare with."""

from __future__ import annotations

from torch import Tensor

from neotta.adapters._methods import register
from neotta.adapters.base import EmbeddingAdapter
from neotta.adapters.declaration import Declaration
from neotta.options import Options


@register
class NoAdapt(EmbeddingAdapter[Options]):
    """The source model in evaluation mode."""

    name = "none"
    title = "No adaptation"
    paper = "the source model"
    declaration = Declaration(
        needs="embeddings",
        hyperparameter_free=True,
        optimization_free=True,
        batch_size_independent=True,
        row_weights=True,
    )

    def _start(self) -> None:
        pass

    def _embeddings(self, embeddings: Tensor, adapt: bool) -> Tensor:
        return self.classify(embeddings)

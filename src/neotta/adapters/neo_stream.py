"""NEO-Stream as an adapter: re-centering that survives streams of few classes, bursts, duplicates and outliers."""

from __future__ import annotations

from torch import Tensor

from neotta.adapters._methods import register
from neotta.adapters.base import EmbeddingAdapter
from neotta.adapters.declaration import Declaration
from neotta.adapters.neo import StatefulAdapter
from neotta.neo.context import current_weights
from neotta.neo.state import Rule
from neotta.neo.streams import Streams
from neotta.neo.variants import VARIANTS


@register
class NEOStream(StatefulAdapter, EmbeddingAdapter[Rule]):
    """Tell a shift of the domain from the labels of the stream, and subtract only the shift."""

    name = "neo-stream"
    title = "NEO-Stream"
    paper = "a rule of this package: see the page on NEO-Stream"
    revision = 2
    declaration = Declaration(needs="embeddings", optimization_free=True, row_weights=True)
    Options = VARIANTS["neo-stream"]

    def _start(self) -> None:
        self.streams = Streams(self.options, self.num_classes, device=self.head.weight.device)

    def _embeddings(self, embeddings: Tensor, adapt: bool) -> Tensor:
        logits = self.classify(embeddings)
        bias = None if self.head.bias is None else self.keep(self.head.bias[None])[0]
        return self._recentered(logits, bias, adapt, current_weights(len(logits)))

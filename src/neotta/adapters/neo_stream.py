"""NEO-Stream as an adapter: re-centering that survives streams of few classes, bursts, duplicates and outliers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from neotta.adapters._methods import register
from neotta.adapters.base import EmbeddingAdapter
from neotta.adapters.declaration import Declaration
from neotta.neo.per_call import take_weights
from neotta.neo.shift_memory import ShiftMemory
from neotta.neo.state_checks import check_subtracted
from neotta.neo.variants import VARIANTS, rule_of
from neotta.options import Options


@register
class NEOStream(EmbeddingAdapter[Options]):
    """Tell a shift of the domain from the labels of the stream, and subtract only the shift."""

    name = "neo-stream"
    title = "NEO-Stream"
    paper = "a rule of this package: see the page on NEO-Stream"
    declaration = Declaration(needs="embeddings", optimization_free=True, row_weights=True)
    Options = VARIANTS["neo-stream"]

    memory: ShiftMemory

    def _start(self) -> None:
        self.memory = ShiftMemory(self.num_classes, rule_of(self.options), self.head.weight.device)

    def _embeddings(self, embeddings: Tensor, adapt: bool) -> Tensor:
        logits = self.keep(F.linear(embeddings, self.head.weight, self.head.bias))
        bias = None if self.head.bias is None else self.keep(self.head.bias[None])[0]
        weights = take_weights(len(logits), self.memory)
        subtract = self.memory.step(logits, len(logits), bias=bias, adapt=adapt, weights=weights)
        self.skipped = int(self.memory.rejected)
        return (logits.to(subtract.dtype) - subtract).to(logits.dtype)

    def configure(self, **changes: Any) -> None:
        """Change options in the middle of a stream; what was learnt stays."""
        super().configure(**changes)
        state = self.memory.state()
        self._start()
        self.memory.load_state(state)

    def _state(self) -> dict[str, Tensor]:
        return dict(self.memory.named_buffers())

    def _check_values(self, state: Mapping[str, Tensor]) -> None:
        super()._check_values(state)
        self.memory.check_state(state)
        check_subtracted(state, self.head.weight.dtype)

"""NEO and its variants as adapters.

Paper: "NEO: No-Optimization Test-Time Adaptation through Latent Re-Centering" (ICLR 2026).
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from neotta.adapters._methods import register
from neotta.adapters.base import Adapter, EmbeddingAdapter
from neotta.adapters.declaration import Declaration
from neotta.errors import UnsupportedModelError
from neotta.neo.context import current_weights
from neotta.neo.files import entries, states_in
from neotta.neo.head import NEOHead, subtract
from neotta.neo.module_swap import ModuleSwap
from neotta.neo.norms import AdaptiveNorm, adaptive_norms, warned_of_few_classes
from neotta.neo.state import Rule
from neotta.neo.streams import Streams
from neotta.neo.variants import VARIANTS


class StatefulAdapter(Adapter[Rule]):
    """What the adapters of the NEO family share: the state of one stream."""

    streams: Streams

    def _recentered(self, rows: Tensor, bias: Tensor | None, adapt: bool, weights: Tensor | None) -> Tensor:
        offsets = self.streams.step(rows, bias, adapt=adapt, weights=weights)
        self.skipped = int(self.streams.table[0, 1])
        return subtract(rows, offsets)

    def _state(self) -> dict[str, Tensor]:
        return entries(self.streams.layout, [], self.streams.table, many=False)

    def _check_values(self, state: Mapping[str, Tensor]) -> None:
        super()._check_values(state)
        part = {name: state[name] for name in self.streams.layout.fields}
        states_in(self.streams.layout, self.streams.rule, part, many=False)


class Recentering(StatefulAdapter):
    """What the variants share: a NEO head of their own, with the model's weights."""

    paper = "NEO: No-Optimization Test-Time Adaptation through Latent Re-Centering, ICLR 2026"

    neo: NEOHead

    def _start(self) -> None:
        self.streams = Streams(self.options, self.head.in_features, device=self.head.weight.device)
        self.neo = NEOHead(self.head, self.streams, uniform_bias=self.name == "neo-mse")

    def _embeddings(self, embeddings: Tensor, adapt: bool) -> Tensor:
        return self.keep(self.neo.classify(self.recenter(embeddings, adapt)))

    def embed(self, images: Tensor, adapt: bool) -> Tensor:
        """Embeddings of a batch of images, (B, d)."""
        embeddings: Tensor = self.encoder(images)
        return embeddings

    def recenter(self, embeddings: Tensor, adapt: bool) -> Tensor:
        """Learn from embeddings, (B, d), if `adapt`, and subtract their mean so far."""
        return self._recentered(embeddings, None, adapt, current_weights(len(embeddings)))


@register
class NEO(Recentering, EmbeddingAdapter[Rule]):
    """Subtract the running mean of all embeddings before the head."""

    name = "neo"
    title = "NEO"
    declaration = Declaration(
        needs="embeddings",
        hyperparameter_free=True,
        optimization_free=True,
        batch_size_independent=True,
        row_weights=True,
    )
    Options = VARIANTS["neo"]


@register
class NEOContinual(NEO):
    """NEO with an exponential moving average of batch means, for domains that change."""

    name = "neo-continual"
    title = "NEO-Continual"
    declaration = Declaration(needs="embeddings", optimization_free=True, row_weights=True)
    Options = VARIANTS["neo-continual"]


@register
class NEOMSE(NEO):
    """NEO for heads trained with squared error: 1/C replaces the bias."""

    name = "neo-mse"
    title = "NEO-MSE"
    Options = VARIANTS["neo-mse"]


@register
class NEOBN(Recentering):
    """NEO whose batch normalisation uses the statistics of the incoming data, for batches of about 64 of mixed classes.

    It destroys streams of few classes, whose statistics are those of the class: a ResNet-20 with batches of 16 of one
    class falls from 86.1 % to 27.8 %.
    """

    name = "neo-bn"
    title = "NEO-BN"
    declaration = Declaration(needs="images", batch_norm=True, hyperparameter_free=True, optimization_free=True)
    Options = VARIANTS["neo-bn"]

    def _start(self) -> None:
        super()._start()
        self._warned = False
        options = self.options.given()
        self._norms: dict[str, AdaptiveNorm] = adaptive_norms(self.model, options["statistics"], options["momentum"])
        if not self._norms:
            raise UnsupportedModelError(
                f"neo-bn needs BatchNorm layers, and {type(self.model).__name__} has none: use 'neo'"
            )
        self._swap = ModuleSwap(
            self.model, {self.model.get_submodule(name): norm for name, norm in self._norms.items()}
        )

    def _adapt(self, images: Tensor) -> Tensor:
        logits = self._embeddings(self.embed(images, adapt=True), adapt=True)
        self._warned = self._warned or warned_of_few_classes(logits)
        return logits

    def _predict(self, images: Tensor) -> Tensor:
        return self._embeddings(self.embed(images, adapt=False), adapt=False)

    def embed(self, images: Tensor, adapt: bool) -> Tensor:
        """Embeddings of a batch of images, (B, d), by the adaptive batch-norm layers."""
        for norm in self._norms.values():
            norm.adapting = adapt
        with self._swap:
            return super().embed(images, adapt)

    def _state(self) -> dict[str, Tensor]:
        state = super()._state()
        for layer, norm in self._norms.items():
            state.update({f"{layer}.{name}": tensor for name, tensor in norm.moving().items()})
        return state

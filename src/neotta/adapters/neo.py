"""NEO and its variants as adapters.

Paper: "NEO: No-Optimization Test-Time Adaptation through Latent Re-Centering" (ICLR 2026).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from neotta.adapters._methods import register
from neotta.adapters.base import Adapter, EmbeddingAdapter
from neotta.adapters.declaration import Declaration
from neotta.neo.codec import check_values
from neotta.neo.files import check_offsets, file_of, fitting, opened
from neotta.neo.head import NEOHead
from neotta.neo.module_swap import ModuleSwap, Unregistered
from neotta.neo.norms import AdaptiveNorm, adaptive_norms
from neotta.neo.state import Rule
from neotta.neo.streams import Streams
from neotta.neo.variants import VARIANTS

_PAPER = "NEO: No-Optimization Test-Time Adaptation through Latent Re-Centering, ICLR 2026"


class KeptHead(NEOHead):
    """A NEO head that answers for the classes that an adapter keeps."""

    def __init__(self, adapter: Adapter[Rule], layer: nn.Linear) -> None:
        size = adapter.options.size(layer.in_features, adapter.num_classes)
        streams = Streams(adapter.options, size, device=layer.weight.device)
        super().__init__(layer, streams, uniform_bias=adapter.name == "neo-mse")
        self._keep = adapter.keep

    def linear(self) -> tuple[Tensor | None, Tensor | None]:
        """The weight, (C, d), and the bias, (C,), of the classes that count for its states."""
        weight, bias = super().linear()
        if self.space == "embeddings" or weight is None:
            return weight, bias
        return self._keep(weight.T).T, None if bias is None else self._keep(bias[None])[0]

    def classify(self, embeddings: Tensor) -> Tensor:
        """Apply only the linear layer, (B, d) to (B, C)."""
        return self._keep(super().classify(embeddings))

    def recentered(self, rows: Tensor, bias: Tensor | None = None) -> Tensor:
        """Re-center embeddings, or logits of the classes that are kept."""
        return super().recentered(rows, None if bias is None else self._keep(bias[None])[0])


class NEOAdapter(Adapter[Rule]):
    """What the adapters of the NEO family share: a NEO head of their own, with the model's weights."""

    neo: KeptHead

    def _start(self) -> None:
        self.neo = KeptHead(self, self.head)
        self.heads = {self.head_name: self.neo}

    def _embeddings(self, embeddings: Tensor, adapt: bool) -> Tensor:
        self.neo.adapting = adapt
        return self._counted(self.neo.forward(embeddings))  # not by a call: its hooks are those of the model's head

    def recentered(self, embeddings: Tensor, adapt: bool) -> Tensor:
        """Learn from embeddings, (B, d), if `adapt`, and subtract their mean so far."""
        self.neo.adapting = adapt
        return self._counted(self.neo.recentered(embeddings))

    def _counted(self, answer: Tensor) -> Tensor:
        self.skipped = int(self.neo.streams.table[0, 1])
        return answer

    def embed(self, images: Any, adapt: bool) -> Tensor:
        """Embeddings of a batch that the model takes, (B, d)."""
        embeddings: Tensor = self.encoder(images)
        return embeddings

    def _state(self) -> dict[str, Tensor]:
        layout = self.neo.streams.layout
        fields = zip(layout.fields, layout.split(self.neo.streams.table), strict=True)
        return {**{name: part[0] for name, part in fields}, **self._moving()}

    def _check_values(self, state: Mapping[str, Tensor]) -> None:
        super()._check_values(state)
        layout = self.neo.streams.layout
        table = layout.join([state[name][None].cpu().double() for name in layout.fields])
        check_values(layout.fields, table.numpy())
        check_offsets(self.neo.streams.rule, table, "this state")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the state as `neotta.save` does, atomically; a model takes it as well.

        Raises:
            StateError: The state holds numbers that `load` would reject. The old file stays.
        """
        self._check_values(self.state_dict())
        moving = {name: tensor.cpu().numpy() for name, tensor in self._moving().items()}
        file_of(self.name, self.heads, moving=moving).save(path)

    def load(self, path: str | os.PathLike[str], *, strict: bool = True) -> None:
        """Continue from a file of `save` or of `neotta.save`; on an error the state does not change.

        Args:
            path: The file.
            strict: Raise an error if the state was saved with other head weights.
        """
        file, source = opened(path)
        (states,) = fitting(file, source, self.name, self.heads, strict=strict).values()
        arrays = {**states.arrays(), **file.moving}
        self.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in arrays.items()})

    def _moving(self) -> dict[str, Tensor]:
        """What adapts besides the head, by name."""
        return {}


@register
class NEO(NEOAdapter, EmbeddingAdapter[Rule]):
    """Subtract the running mean of all embeddings before the head."""

    name = "neo"
    title = "NEO"
    paper = _PAPER
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
class NEOBN(NEOAdapter):
    """NEO whose batch normalisation uses the statistics of the incoming data, for batches of about 64 of mixed classes.

    It destroys streams of few classes, whose statistics are those of the class: a ResNet-20 with batches of 16 of one
    class falls from 86.1 % to 27.8 %.
    """

    name = "neo-bn"
    title = "NEO-BN"
    paper = _PAPER
    declaration = Declaration(needs="images", batch_norm=True, hyperparameter_free=True, optimization_free=True)
    Options = VARIANTS["neo-bn"]

    def _start(self) -> None:
        super()._start()
        options = self.options.given()
        self._norms: dict[str, AdaptiveNorm] = adaptive_norms(self.model, options["statistics"], options["momentum"])
        self.neo.followers = [Unregistered(norm) for norm in self._norms.values()]
        self._swap = ModuleSwap(
            self.model, {self.model.get_submodule(name): norm for name, norm in self._norms.items()}
        )

    def _adapt(self, images: Tensor) -> Tensor:
        return self._embeddings(self.embed(images, adapt=True), adapt=True)

    def _predict(self, images: Tensor) -> Tensor:
        return self._embeddings(self.embed(images, adapt=False), adapt=False)

    def embed(self, images: Any, adapt: bool) -> Tensor:
        """Embeddings of a batch of images, (B, d), by the adaptive batch-norm layers."""
        for norm in self._norms.values():
            norm.adapting = adapt
        with self._swap:
            return super().embed(images, adapt)

    def _moving(self) -> dict[str, Tensor]:
        return {f"{name}.{key}": each for name, norm in self._norms.items() for key, each in norm.moving().items()}


@register
class NEOStream(NEOAdapter, EmbeddingAdapter[Rule]):
    """Tell a shift of the domain from the labels of the stream, and subtract only the shift."""

    name = "neo-stream"
    title = "NEO-Stream"
    paper = "a rule of this package: see the page on NEO-Stream"
    revision = 3
    declaration = Declaration(needs="embeddings", optimization_free=True, row_weights=True)
    Options = VARIANTS["neo-stream"]

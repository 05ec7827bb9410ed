"""RDumb: go back to the source model every so many batches.

Paper: Press et al., "RDumb: A simple approach that questions our progress in continual test-time adaptation", NeurIPS
2023. The paper's method is ETA with restarts; `"rdumb+tent"` is any other method with them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from neotta.adapters._methods import AnyAdapter, register
from neotta.adapters.base import EmbeddingAdapter
from neotta.adapters.declaration import Declaration
from neotta.adapters.eta import ETA, ETAOptions
from neotta.adapters.stack import Combined
from neotta.errors import OptionError
from neotta.neo.model_inputs import batch_size
from neotta.options import Options


class RestartOptions(Options):
    reset_every: int = Field(1000, ge=1, description="Number of batches after which the source model is restored, T.")
    reset_keeps_count: bool = Field(
        False, description="Whether reset() leaves the count of batches running, as a published implementation does."
    )


class RDumbOptions(RestartOptions, ETAOptions):
    presets: ClassVar = {
        "original": ETAOptions.presets["original"],
        "cifar": ETAOptions.presets["cifar"],
    }


class Restarting(Combined):
    """A method that starts again every `reset_every` batches, at the beginning of the batch that follows.

    Every batch that is adapted to counts, whether or not the method found something to learn in it; one that it had to
    leave out as a whole (NaN) does not. `around` makes the class for a method.
    """

    kind: ClassVar[type[AnyAdapter]]

    inner: AnyAdapter
    count: Tensor
    """Number of batches so far, a scalar."""

    def _start(self) -> None:
        if hasattr(self, "inner"):
            self.inner.reset()
        else:
            self.add_state("inner", self._member(self.kind))
        if not (hasattr(self, "count") and self.options.reset_keeps_count):
            self.add_state("count", torch.zeros((), dtype=torch.int64))

    def _adapt(self, images: Tensor) -> Tensor:
        return self._counted(batch_size(images), lambda: self.inner(images))

    def _predict(self, images: Tensor) -> Tensor:
        return self.inner(images, adapt=False)

    def _counted(self, samples: int, adapt: Callable[[], Tensor]) -> Tensor:
        if int(self.count) and int(self.count) % self.options.reset_every == 0:
            self.inner.reset()
        before = self.inner.skipped
        logits = adapt()
        skipped = self.inner.skipped - before
        self.skipped += skipped
        if skipped < samples:
            self.count += 1
        return logits

    @property
    def forward_passes(self) -> int:
        """As many as the method takes."""
        return self.inner.forward_passes

    def _check_model(self) -> None:
        super()._check_model()
        self.inner._check_model()


class RestartingEmbeddings(Restarting, EmbeddingAdapter[Any]):
    """Restarts a method that needs only embeddings."""

    inner: EmbeddingAdapter[Any]

    def _embeddings(self, embeddings: Tensor, adapt: bool) -> Tensor:
        if not adapt:
            return self.inner.predict_embeddings(embeddings, adapt=False)
        return self._counted(len(embeddings), lambda: self.inner.predict_embeddings(embeddings))


@register
class RDumb(Restarting):
    """ETA that goes back to the source model every thousand batches."""

    name = "rdumb"
    title = "RDumb"
    paper = "RDumb: A simple approach that questions our progress in continual test-time adaptation, NeurIPS 2023"
    declaration = Declaration(needs="images", gradients=True)
    Options = RDumbOptions
    kind = ETA


@functools.cache
def around(kind: type[AnyAdapter]) -> type[Restarting]:
    """Make the class of a method with restarts, which has the method's options, presets and needs."""
    if issubclass(kind, Restarting):
        raise OptionError(f"{kind.name} restarts already: name another method after 'rdumb+'")
    base = RestartingEmbeddings if issubclass(kind, EmbeddingAdapter) else Restarting
    options = {"presets": kind.Options.presets, "__module__": __name__}
    return type(
        f"RDumb{kind.__name__}",
        (base,),
        {
            "__doc__": f"{kind.title}, started again every so many batches.",
            "kind": kind,
            "name": f"rdumb+{kind.name}",
            "title": f"RDumb + {kind.title}",
            "paper": f"{RDumb.paper}; {kind.paper}",
            "declaration": dataclasses.replace(kind.declaration, hyperparameter_free=False, published_passes=None),
            "Options": type(f"RDumb{kind.Options.__name__}", (RestartOptions, kind.Options), options),
        },
    )

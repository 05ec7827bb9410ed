"""Two methods in one: the first re-centers the embeddings, the second reads the re-centered ones.

Only such stacks are well defined. A method of the NEO family moves embeddings and leaves the head alone, so that any
method which needs only embeddings and the head can follow. Any other pair would have to share weights, or discard the
answer of one of the two.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, ClassVar

from torch import Tensor

from neotta.adapters._methods import METHODS, AnyAdapter
from neotta.adapters.base import Adapter, EmbeddingAdapter
from neotta.adapters.declaration import Declaration
from neotta.adapters.neo import NEOMSE, NEOAdapter
from neotta.adapters.none import NoAdapt
from neotta.errors import OptionError
from neotta.neo.head import NEOHead
from neotta.neo.mean import AnyMean
from neotta.options import Options


class Combined(Adapter[Any]):
    """A method made of others, which are parts of its state."""

    @property
    def heads(self) -> dict[str, NEOHead]:  # type: ignore[override]
        """The NEO heads of the methods."""
        parts = [getattr(self, name) for name in self._declared]
        return {name: head for part in parts if isinstance(part, Adapter) for name, head in part.heads.items()}

    def _member(self, kind: type[AnyAdapter]) -> AnyAdapter:
        own = {name: value for name, value in self.options.given().items() if name in kind.Options.model_fields}
        return kind(self.model, kind.Options.make(kind.name, own), classes=self.classes, head=self.head_name)


class Stack(Combined):
    """A re-centering method and one that follows it, with the options of both; `stack` makes the class for a pair."""

    kinds: ClassVar[tuple[type[NEOAdapter], type[EmbeddingAdapter[Any]]]]

    first: NEOAdapter
    last: EmbeddingAdapter[Any]

    def _start(self) -> None:
        for name, kind in zip(("first", "last"), self.kinds, strict=True):
            self.add_state(name, self._member(kind))

    def _adapt(self, images: Tensor) -> Tensor:
        return self._embeddings(self.first.embed(images, adapt=True), adapt=True)

    def _predict(self, images: Tensor) -> Tensor:
        return self._embeddings(self.first.embed(images, adapt=False), adapt=False)

    def _embeddings(self, embeddings: Tensor, adapt: bool) -> Tensor:
        answer = self.last.predict_embeddings(self.first.recentered(embeddings, adapt), adapt)
        self.skipped = self.last.skipped
        return answer


class EmbeddingStack(Stack, EmbeddingAdapter[Any]):
    """A stack that needs only embeddings."""


@functools.cache
def stack(kinds: tuple[type[AnyAdapter], ...]) -> type[Stack]:
    """Make the class of a stack."""
    if len(kinds) != 2 or not _recenters(kinds[0]) or not _follows(kinds[1]):
        known = METHODS.available()
        raise OptionError(
            f"{' + '.join(kind.name for kind in kinds) or 'an empty list'} cannot be stacked: a stack is one of "
            f"{', '.join(name for name in known if _recenters(known[name]))}, followed by one of "
            f"{', '.join(sorted(name for name in known if _follows(known[name])))}"
        )
    first, last = kinds
    both = sorted(first.Options.model_fields.keys() & last.Options.model_fields.keys())
    if both:
        raise OptionError(f"{first.name} and {last.name} cannot be stacked: both have an option {both[0]!r}")
    base = EmbeddingStack if issubclass(first, EmbeddingAdapter) else Stack
    return type(
        f"{first.__name__}{last.__name__}",
        (base,),
        {
            "__doc__": f"{first.title}, then {last.title} on the re-centered embeddings.",
            "kinds": kinds,
            "name": f"{first.name}+{last.name}",
            "title": f"{first.title} + {last.title}",
            "paper": f"{first.paper}; {last.paper}",
            "declaration": _together(first.declaration, last.declaration),
            "Options": _options(first.Options, last.Options),
        },
    )


def _recenters(kind: type[AnyAdapter]) -> bool:
    """Whether a method moves the embeddings only; NEO-Stream moves the logits, and NEO-MSE changes the bias too."""
    return issubclass(kind, NEOAdapter) and issubclass(kind.Options, AnyMean) and not issubclass(kind, NEOMSE)


def _follows(kind: type[AnyAdapter]) -> bool:
    return issubclass(kind, EmbeddingAdapter) and not issubclass(kind, (NEOAdapter, Stack)) and kind is not NoAdapt


def _together(first: Declaration, last: Declaration) -> Declaration:
    both = ("hyperparameter_free", "optimization_free", "batch_size_independent", "row_weights")
    either = ("gradients", "source_images", "normalisation", "random", "forward_passes")
    values: dict[str, Any] = {name: min(getattr(first, name), getattr(last, name)) for name in both}
    values |= {name: max(getattr(first, name), getattr(last, name)) for name in either}
    return dataclasses.replace(last, needs=first.needs, batch_norm=first.batch_norm, published_passes=None, **values)


def _options(first: type[Options], last: type[Options]) -> type[Options]:
    names = [*first.presets, *(name for name in last.presets if name not in first.presets)]
    presets = {name: {**first.presets.get(name, {}), **last.presets.get(name, {})} for name in names}
    return type(f"{first.__name__}And{last.__name__}", (first, last), {"presets": presets, "__module__": __name__})

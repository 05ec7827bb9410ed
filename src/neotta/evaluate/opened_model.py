"""A model that is loaded and hashed once, however many workbenches use it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from neotta.models.identity import identity
from neotta.models.load import LoadedModel, load_model
from neotta.models.preprocess import Preprocess
from neotta.neo._conventions import of_a_library
from neotta.neo.split import split


class OpenedModel:
    """A loaded model.

    Args:
        name: What `neotta.load_model` takes.
        options: Its further arguments.
        device: Where the model runs; by default a GPU if there is one.

    Attributes:
        loaded: The model with its preprocessing and labels.
        module: The model.
        encoder: The part in front of the head.
        head: The head.
        example: Noise of the size that the model takes, to find its head with; None if its library tells the head.
    """

    def __init__(self, name: str, options: Mapping[str, Any] | None = None, device: str | None = None) -> None:
        self.name, self.options, self.device = name, dict(options or {}), device
        with torch.random.fork_rng():
            torch.manual_seed(0)  # a model with random weights is the same one in every process
            chosen = device or ("cuda" if torch.cuda.is_available() else "cpu")
            self.loaded = load_model(name, device=chosen, **self.options)
        self.module = self.loaded.model
        self.example = None if of_a_library(self.module) else _noise(self.loaded)
        self.encoder, self.head = split(self.module, example=self.example)

    def prepared(self, values: Mapping[str, Any]) -> OpenedModel:
        """The same model with some values of its preprocessing changed, as the option `preprocess` changes them."""
        other = copy.copy(self)
        other.options = {**self.options, "preprocess": dict(values)}
        changed = Preprocess.from_dict({**self.loaded.preprocess.to_dict(), **values})
        other.loaded = self.loaded._replace(preprocess=changed)
        return other

    @cached_property
    def weights(self) -> str:
        """A hash of the model: its weights, and how it is built."""
        return identity(self.module)

    def made_from(self, name: str, options: Mapping[str, Any]) -> bool:
        """Whether this is the model of a name with these options."""
        return (self.name, self.options) == (name, dict(options))


def _noise(loaded: LoadedModel) -> Tensor:
    like = next(loaded.model.parameters())
    shape = (2, len(loaded.preprocess.mean), *loaded.preprocess.size)
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(like)

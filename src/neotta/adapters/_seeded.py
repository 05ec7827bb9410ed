"""The base of methods that train and draw at random: a generator of their own that can be saved."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from pydantic import Field
from torch import Tensor

from neotta.adapters.gradient import GradientAdapter
from neotta.errors import StateMismatchError
from neotta.options import Options


class SeededOptions(Options):
    """Options of methods that draw at random."""

    seed: int = Field(0, ge=0, lt=2**63, description="Seed of all randomness.")


S = TypeVar("S", bound=SeededOptions)


class SeededAdapter(GradientAdapter[S]):
    """A method that trains, with a random generator of its own."""

    generator: torch.Generator

    @abstractmethod
    def _learn(self, images: Tensor) -> tuple[Tensor, bool]:
        """Predict a batch and learn from it. Returns logits, (B, C), and whether the batch could be learnt from."""

    def _start(self) -> None:
        super()._start()
        self.generator = torch.Generator().manual_seed(self.options.seed)

    def _adapt(self, images: Tensor) -> Tensor:
        before = self.generator.get_state()
        logits, learnt = self._learn(images)
        if learnt:
            self.watch(logits)
        else:  # a bad batch must not affect later draws either
            self.generator.set_state(before)
        return logits

    def configure(self, **changes: Any) -> None:
        """Change options in the middle of a stream; a new seed restarts the generator."""
        super().configure(**changes)
        if "seed" in changes:
            self.generator.manual_seed(self.options.seed)

    def _state(self) -> dict[str, Tensor]:
        return {**super()._state(), "generator": self.generator.get_state()}

    def _load(self, state: Mapping[str, Tensor]) -> None:
        try:
            self.generator.set_state(state["generator"].cpu())
        except (RuntimeError, TypeError) as error:
            raise StateMismatchError(f"entry 'generator' of this state is not that of a generator: {error}") from error
        super()._load(state)

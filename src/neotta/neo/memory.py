"""Memory: where the moments of a head live, one set for all samples or one for each stream."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from neotta.neo.rules import Rule
from neotta.neo.stream_ids import StreamId

if TYPE_CHECKING:
    from neotta.neo.centroid import Centroid


class Memory(nn.Module, ABC):
    """What a head asks for the vectors that it subtracts.

    Every change and every reading of the whole holds a lock: threads that share a memory lose no update and never
    read half of one. A compiled graph runs without the lock.

    Where a method takes a `stream`, None stands for the only one, or for all of them, as it says.

    Attributes:
        features: The length d of an embedding.
        rule: How a centroid is made.
        many: Whether one set of moments is kept for each stream.
    """

    many: ClassVar[bool]

    def __init__(self, features: int, rule: Rule) -> None:
        super().__init__()
        self.features = features
        self.rule = rule
        self._lock = threading.RLock()

    @abstractmethod
    def step(self, rows: Tensor, samples: int = 1, *, adapt: bool = True) -> Tensor:
        """Take in a batch of embeddings and return what to subtract from them.

        Args:
            rows: (N, d), N a multiple of `samples`: N / samples consecutive rows belong to each sample.
            samples: Number of samples in the batch.
            adapt: Whether the batch is taken in; if not, nothing changes.

        Returns:
            The centroid (d,), or one for each row (N, d), in float32 or better.
        """

    @abstractmethod
    def centroid(self, stream: StreamId | None = None) -> Centroid:
        """A copy of a stream's centroid.

        Raises:
            InputError: There is no such stream, or none is named and there are many.
        """

    @abstractmethod
    def put(self, centroid: Centroid, stream: StreamId | None = None) -> None:
        """Set a stream's centroid."""

    @abstractmethod
    def reset(self, stream: StreamId | None = None) -> None:
        """Forget one stream, or everything."""

    @abstractmethod
    def total(self) -> int:
        """Number of samples seen, in all streams together."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """A copy of everything that is remembered, by name."""

    @abstractmethod
    def check_state(self, state: Mapping[str, Tensor]) -> None:
        """Raise an error unless `state` is one that `load_state` takes.

        Raises:
            StateMismatchError: It belongs to another model or method.
        """

    @abstractmethod
    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Replace everything by what `state` returned; if it does not fit, an error and no change."""

    @abstractmethod
    def blank(self) -> Centroid:
        """An empty centroid of the kind that each stream has."""

    def guard(self) -> AbstractContextManager[Any]:
        """The lock; nothing in a compiled graph, where there are no locks."""
        return nullcontext() if is_compiling() else self._lock

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:  # the copy is made of buffers that no thread changes
            buffers = {name: None if buffer is None else buffer.clone() for name, buffer in self._buffers.items()}
        return {**{name: value for name, value in self.__dict__.items() if name != "_lock"}, "_buffers": buffers}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._lock = threading.RLock()


def widest(device: torch.device) -> torch.dtype:
    """The best floating point format of a device."""
    return torch.float32 if device.type == "mps" else torch.float64

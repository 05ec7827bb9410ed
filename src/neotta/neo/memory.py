"""Memory: where the moments of a head live, one set for all samples or one for each stream."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from neotta.errors import InputError, OptionError, StateMismatchError
from neotta.neo.rules import Rule
from neotta.neo.stream_ids import StreamId


class Memory(nn.Module, ABC):
    """What a head asks for the vectors that it subtracts.

    Every change and every reading of the whole holds a lock: threads that share a memory lose no update and never
    read half of one. A compiled graph runs without the lock.

    Where a method takes a `stream`, None stands for the only one, or for all of them, as it says.

    Attributes:
        features: The length of a row.
        rule: From what is remembered to what is subtracted.
        many: Whether one set of moments is kept for each stream.
    """

    many: ClassVar[bool]

    def __init__(self, features: int, rule: Rule) -> None:
        super().__init__()
        self.features = features
        self.rule = rule
        self._lock = threading.RLock()

    @abstractmethod
    def step(self, rows: Tensor, samples: int = 1, *, bias: Tensor | None = None, adapt: bool = True) -> Tensor:
        """Take in a batch of embeddings, or of logits, and return what to subtract from them.

        Args:
            rows: (N, d) or (N, C), as the rule wants them; N / samples consecutive rows belong to each sample.
            samples: Number of samples in the batch.
            bias: The bias of the head, (C,).
            adapt: Whether the batch is taken in; if not, nothing changes.

        Returns:
            The centroid (d,), or one for each row (N, d), in float32 or better.
        """

    @abstractmethod
    def centroid(self, stream: StreamId | None = None) -> OneStreamMemory:
        """A copy of a stream's centroid.

        Raises:
            InputError: There is no such stream, or none is named and there are many.
        """

    @abstractmethod
    def put(self, centroid: OneStreamMemory, stream: StreamId | None = None) -> None:
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
    def blank(self) -> OneStreamMemory:
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


class OneStreamMemory(Memory):
    """The moments of one stream, in buffers that move along with the model.

    Whole numbers are int64, the others float64 (float32 on devices that have nothing better), whatever the dtype of
    the model.

    Args:
        features: The length of a row.
        rule: From what is remembered to what is subtracted.
        device: Where the buffers are.
    """

    many = False
    count: Tensor
    rejected: Tensor

    def __init__(self, features: int, rule: Rule, device: torch.device | str | None = None) -> None:
        super().__init__(features, rule)
        self._fields = rule.fields(features)
        real = widest(torch.device(device or "cpu"))
        with torch.inference_mode(False):  # tensors made in inference mode could never be updated outside it
            for name, field in self._fields.items():
                dtype = torch.int64 if field.kind == "count" else real
                value = torch.full(field.shape, field.start, dtype=dtype, device=device)
                self.register_buffer(name, value, persistent=False)

    def moments(self) -> Any:
        """The buffers themselves, as the rule's `State`: hold `guard()` while you use them."""
        buffers: dict[str, Any] = self._buffers  # as attributes of a module they would be searched for
        return self.rule.State(*(buffers[name] for name in self._fields))

    def value(self, dtype: torch.dtype | None = None) -> Tensor:
        """A copy of the vector to subtract, (d,) or (C,)."""
        with self.guard():
            centre: Tensor = self.rule.centre(self.moments())
            return centre.to(dtype or centre.dtype, copy=True)

    def total(self) -> int:
        """Number of samples seen."""
        return int(self.count)

    def blank(self) -> OneStreamMemory:
        """An empty memory of the same kind, on the same device."""
        return type(self)(self.features, self.rule, device=self.count.device)

    def centroid(self, stream: StreamId | None = None) -> OneStreamMemory:
        """A copy of this memory."""
        self._refuse(stream)
        copy = self.blank()
        copy.load_state(self.state())
        return copy

    def put(self, centroid: OneStreamMemory, stream: StreamId | None = None) -> None:
        """Take over the state of another."""
        self._refuse(stream)
        self.load_state(centroid.state())

    @torch.no_grad()
    def reset(self, stream: StreamId | None = None) -> None:
        """Forget everything."""
        self._refuse(stream)
        with self.guard():
            for name, field in self._fields.items():
                getattr(self, name).fill_(field.start)

    def _refuse(self, stream: StreamId | None) -> None:
        if stream is not None:
            raise InputError("this model does not keep streams apart: adapt it with streams=True, or name no stream")

    @torch.no_grad()
    def merge(self, other: OneStreamMemory) -> None:
        """Take in the state of another, as if its samples had come here.

        Raises:
            OptionError: A moving average cannot be merged: it depends on the order of its batches.
            StateMismatchError: The two count in different ways or differ in size.
        """
        if not (self.rule.mergeable and other.rule.mergeable):
            raise OptionError("a moving average cannot be merged: it depends on the order of its batches")
        if (self.features, self.rule) != (other.features, other.rule):
            mine, theirs = f"{self.features} numbers, {self.rule}", f"{other.features} numbers, {other.rule}"
            raise StateMismatchError(f"a state of {mine} cannot be merged with one of {theirs}")
        state = other.state()
        new = self.rule.State(*(state[name].to(getattr(self, name)) for name in self._fields))
        with self.guard():
            self.rule.merge(self.moments(), new)

    def state(self) -> dict[str, Tensor]:
        """A copy of the buffers by name."""
        with self.guard():
            return {name: buffer.detach().clone() for name, buffer in self.named_buffers()}

    def check_state(self, state: Mapping[str, Tensor]) -> None:
        """Raise an error unless `state` has the entries and shapes of this memory."""
        mine = dict(self.named_buffers())
        if mine.keys() != state.keys():
            raise StateMismatchError(f"a centroid consists of {sorted(mine)}, got {sorted(state)}")
        for name, buffer in mine.items():
            if buffer.shape != state[name].shape:
                here, there = tuple(buffer.shape), tuple(state[name].shape)
                raise StateMismatchError(f"the centroid's {name!r} has shape {here}, got {there}")

    @torch.no_grad()
    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state` returned; either all of it or, with an error, nothing."""
        self.check_state(state)
        with self.guard():
            for name, buffer in self.named_buffers():
                buffer.copy_(state[name])

    @torch.inference_mode(False)
    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> OneStreamMemory:
        """Follow the module to another device, but not to a narrower dtype."""
        device = fn(torch.empty(0, device=self.count.device)).device
        real = widest(device)
        for name, buffer in self._buffers.items():
            if buffer is None:
                continue
            wanted = buffer.to(real) if buffer.is_floating_point() else buffer
            moved = fn(wanted)
            self._buffers[name] = moved if moved.dtype == wanted.dtype else wanted.to(device)
        return self


def widest(device: torch.device) -> torch.dtype:
    """The best floating point format of a device."""
    return torch.float32 if device.type == "mps" else torch.float64

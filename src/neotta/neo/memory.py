"""Memory: where a head keeps its moments, one set for all samples or one per stream."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from neotta.errors import InputError, OptionError, StateMismatchError
from neotta.neo import fork_locks
from neotta.neo.rules import Rule
from neotta.neo.state_checks import check_fields, completed
from neotta.neo.stream_ids import StreamId


class Memory(nn.Module, ABC):
    """The moments of a head, from which it gets the vectors to subtract.

    Every change and every complete read holds a lock, so threads can share a memory. A compiled graph runs without it.

    Attributes:
        features: Length of a row.
        rule: How the vector to subtract is computed from the moments.
        many: Whether there is one set of moments per stream.
    """

    many: ClassVar[bool]

    def __init__(self, features: int, rule: Rule) -> None:
        super().__init__()
        self.features = features
        self.rule = rule
        self._lock = fork_locks.register(self)

    @abstractmethod
    def step(
        self,
        rows: Tensor,
        samples: int = 1,
        *,
        bias: Tensor | None = None,
        adapt: bool = True,
        weights: Tensor | None = None,
    ) -> Tensor:
        """Add a batch of embeddings or logits and return what to subtract from them.

        Args:
            rows: (N, d) or (N, C), depending on the rule; N / samples consecutive rows belong to each sample.
            samples: Number of samples in the batch.
            bias: Bias of the head, (C,).
            adapt: Whether to add the batch; if not, nothing changes.
            weights: How much each row, (N,), or each sample counts, at least 0; None for 1 each.

        Returns:
            The centroid (d,), or one per row (N, d), in float32 or better.

        Raises:
            InputError: The weights are not as many as rows or samples, or one is negative, NaN or Inf.
        """

    @abstractmethod
    def checkpoint(self) -> Callable[[], None]:
        """Remember the state that the current calls may change; the function that is returned goes back to it."""

    @abstractmethod
    def centroid(self, stream: StreamId | None = None) -> OneStreamMemory:
        """Return a copy of a stream's centroid; without streams, of the only one.

        Raises:
            InputError: The stream does not exist, or none is given for a memory with streams.
        """

    @abstractmethod
    def put(self, centroid: OneStreamMemory, stream: StreamId | None = None) -> None:
        """Set a stream's centroid; without streams, the only one."""

    @abstractmethod
    def reset(self, stream: StreamId | None = None) -> None:
        """Forget one stream, or everything."""

    @abstractmethod
    def total(self) -> int:
        """Number of samples seen, in all streams."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """Return a copy of the whole state by name."""

    @abstractmethod
    def check_state(self, state: Mapping[str, Tensor]) -> None:
        """Check that `load_state` accepts a state.

        Raises:
            StateMismatchError: It belongs to another model or method.
            StateError: It holds NaN, Inf, or counts that no stream can have.
        """

    @abstractmethod
    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Load what `state` returned; if it does not fit, raise an error and change nothing."""

    @abstractmethod
    def blank(self) -> OneStreamMemory:
        """Return an empty centroid with the same rule."""

    def guard(self) -> AbstractContextManager[Any]:
        """The lock; in a compiled graph, a null context."""
        return nullcontext() if is_compiling() else self._lock

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:  # no thread may change the buffers while they are copied
            buffers = {name: None if buffer is None else buffer.clone() for name, buffer in self._buffers.items()}
        return {**{name: value for name, value in self.__dict__.items() if name != "_lock"}, "_buffers": buffers}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._lock = fork_locks.register(self)


class OneStreamMemory(Memory):
    """The moments of one stream, in buffers that move with the model.

    Integers are int64, the others float64 (float32 on devices without it), whatever the dtype of the model.

    Args:
        features: Length of a row.
        rule: How the vector to subtract is computed from the moments.
        device: Device of the buffers.
    """

    many = False
    count: Tensor
    rejected: Tensor

    def __init__(self, features: int, rule: Rule, device: torch.device | str | None = None) -> None:
        super().__init__(features, rule)
        self._fields = rule.fields(features)
        real = widest(torch.device(device or "cpu"))
        with torch.inference_mode(False):  # tensors created in inference mode cannot be updated outside it
            for name, field in self._fields.items():
                dtype = torch.int64 if field.kind == "count" else real
                value = torch.full(field.shape, field.start, dtype=dtype, device=device)
                self.register_buffer(name, value, persistent=False)

    def moments(self) -> Any:
        """The buffers themselves, not a copy, as the rule's `State`: hold `guard()` while using them."""
        buffers: dict[str, Any] = self._buffers  # faster than looking up attributes of a module
        return self.rule.State(*(buffers[name] for name in self._fields))

    def value(self, dtype: torch.dtype | None = None) -> Tensor:
        """Return a copy of the vector to subtract, (d,) or (C,)."""
        with self.guard():
            centre: Tensor = self.rule.centre(self.moments())
            return centre.to(dtype or centre.dtype, copy=True)

    def total(self) -> int:
        """Number of samples seen."""
        return int(self.count)

    def blank(self) -> OneStreamMemory:
        """Return an empty memory with the same rule, on the same device."""
        return type(self)(self.features, self.rule, device=self.count.device)

    def centroid(self, stream: StreamId | None = None) -> OneStreamMemory:
        """Return a copy of this memory."""
        self._refuse(stream)
        copy = self.blank()
        copy.load_state(self.state())
        return copy

    def put(self, centroid: OneStreamMemory, stream: StreamId | None = None) -> None:
        """Copy the state of another memory."""
        self._refuse(stream)
        self.load_state(centroid.state())

    @torch.no_grad()
    def reset(self, stream: StreamId | None = None) -> None:
        """Forget everything."""
        self._refuse(stream)
        with self.guard():
            for name, field in self._fields.items():
                getattr(self, name).fill_(field.start)

    def checkpoint(self) -> Callable[[], None]:
        """Remember the state; the function that is returned goes back to it."""
        before = self.state()
        return lambda: self.load_state(before)

    def _refuse(self, stream: StreamId | None) -> None:
        if stream is not None:
            raise InputError("this model has no streams: adapt it with streams=True, or omit the stream")

    @torch.no_grad()
    def merge(self, other: OneStreamMemory) -> None:
        """Add the samples of another memory, as if they had been seen here.

        Raises:
            OptionError: One of them is a moving average, which depends on the order of its batches.
            StateMismatchError: They differ in size or rule.
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
        """Return a copy of the buffers by name."""
        with self.guard():
            return {name: buffer.detach().clone() for name, buffer in self.named_buffers()}

    def check_state(self, state: Mapping[str, Tensor]) -> None:
        """Check that `state` has the entries and shapes of this memory, and plausible values."""
        mine = dict(self.named_buffers())
        state = completed(self._fields, state)
        if mine.keys() != state.keys():
            raise StateMismatchError(f"expected the entries {sorted(mine)}, got {sorted(state)}")
        for name, buffer in mine.items():
            if buffer.shape != state[name].shape:
                here, there = tuple(buffer.shape), tuple(state[name].shape)
                raise StateMismatchError(f"the centroid's {name!r} has shape {here}, got {there}")
        check_fields(self._fields, state, mine)

    @torch.no_grad()
    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Load what `state` returned; if it does not fit, raise an error and change nothing."""
        self.check_state(state)
        state = completed(self._fields, state)
        with self.guard():
            for name, buffer in self.named_buffers():
                buffer.copy_(state[name])

    @torch.inference_mode(False)
    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> OneStreamMemory:
        """Move to another device, but keep the dtype."""
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
    """The most precise floating point dtype of a device."""
    return torch.float32 if device.type == "mps" else torch.float64

"""What a monitor attaches to: an adapted model, one of its streams, a NEO head, or a NEO adapter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from neotta.adapters.neo import Recentering
from neotta.errors import InputError, ModelError, OptionError, UnknownNameError
from neotta.monitoring.position import MeanPosition, Position, ShiftPosition
from neotta.neo.head import NEOHead
from neotta.neo.memory import OneStreamMemory
from neotta.neo.per_call import is_paused, peek_weights
from neotta.neo.statefile import fingerprint
from neotta.neo.stream_ids import StreamId, current, one
from neotta.neo.surgery import heads, need_stream

Watch = Callable[[Tensor], object]


class Target:
    """A NEO head, or one of its streams.

    Args:
        name: Name of the head in its model.
        head: The head.
        stream: The stream, if the head has several.
    """

    def __init__(self, name: str, head: NEOHead, stream: StreamId | None = None) -> None:
        self.name = name
        self._head = head
        self._stream = stream
        self.fingerprint = fingerprint(dict(head.named_parameters()))

    @property
    def neo(self) -> NEOHead:
        """The head."""
        return self._head

    @property
    def count(self) -> int:
        """Number of samples seen."""
        return self.centroid().total()

    @property
    def in_embeddings(self) -> bool:
        """Whether it subtracts a centroid from embeddings, and not a shift from logits."""
        return self.neo.memory.rule.space == "embeddings"

    def position(self) -> Position:
        """An empty estimate of what the model should subtract."""
        return MeanPosition(self.neo.in_features) if self.in_embeddings else ShiftPosition(self.neo)

    def centre(self) -> Tensor:
        """Return a copy of the vector that is subtracted, (d,) or (C,) float64."""
        return self.centroid().value(torch.float64).cpu()

    def centroid(self) -> OneStreamMemory:
        """Return a copy of the centroid; an empty one for a stream that was not seen yet."""
        try:
            return self.neo.memory.centroid(self._stream)
        except InputError:
            return self.blank()

    def blank(self) -> OneStreamMemory:
        """Return an empty centroid with the same rule."""
        return self.neo.memory.blank()

    def put(self, centroid: OneStreamMemory) -> None:
        """Set the centroid."""
        self.neo.memory.put(centroid, self._stream)

    def reset(self) -> None:
        """Reset the adaptation state."""
        self.neo.reset(self._stream)

    def watch(self, watch: Watch) -> Callable[[], None]:
        """Call `watch` with every batch of embeddings before the head sees it; return a function that stops it."""

        def hook(module: nn.Module, arguments: tuple[Any, ...]) -> None:
            if module is self._head:  # not a copy, or the layer it replaced, which share its hooks
                self._show(arguments[0], watch)

        return self._head.register_forward_pre_hook(hook).remove

    def _show(self, embeddings: Tensor, watch: Watch) -> None:
        if is_paused(self._head):
            return
        samples, memory = len(embeddings) if embeddings.dim() > 1 else 1, self._head.memory
        ids = None if self._stream is None else current(samples, memory, peek=True)
        weights = peek_weights(samples, memory)
        if ids is None and weights is None:
            watch(embeddings)
            return
        counts = [weights is None or bool(weights[place] > 0) for place in range(samples)]
        mine = [place for place in range(samples) if counts[place] and (ids is None or ids[place] == self._stream)]
        if mine:
            watch(embeddings.reshape(samples, -1, embeddings.shape[-1])[mine])


class _Adapter(Target):
    """A NEO adapter."""

    def __init__(self, adapter: Recentering) -> None:
        self._adapter = adapter
        super().__init__(adapter.head_name, adapter.neo)

    @property
    def neo(self) -> NEOHead:
        return self._adapter.neo  # a new one after each reset

    def reset(self) -> None:
        self._adapter.reset()

    def watch(self, watch: Watch) -> Callable[[], None]:
        if self._adapter.observer is not None:
            raise OptionError("this adapter already has another monitor: remove that one first")
        self._adapter.observer = watch

        def end() -> None:
            self._adapter.observer = None

        return end


def find_target(model: nn.Module | Recentering, head: str | None = None, stream: StreamId | None = None) -> Target:
    """Find the NEO head to monitor.

    Args:
        model: An adapted model, a NEO head, or a NEO adapter.
        head: Name of the head, for a model with several.
        stream: The stream, for a model with streams.
    """
    if isinstance(model, Recentering):
        if head is not None or stream is not None:
            raise OptionError("head and stream do not apply: an adapter has one head and no streams")
        return _Adapter(model)
    if not isinstance(model, nn.Module):
        raise OptionError(f"expected an adapted model or a NEO adapter, got {type(model).__name__}")
    found = heads(model)
    need_stream(model, stream, "neotta.Monitor(model, stream='gate')")
    if head is None and len(found) > 1:
        raise ModelError(f"the model has {len(found)} heads ({', '.join(found)}): name one with head=")
    name = next(iter(found)) if head is None else head
    if name not in found:
        raise UnknownNameError("head", name, found)
    return Target(name, found[name], None if stream is None else one(stream))

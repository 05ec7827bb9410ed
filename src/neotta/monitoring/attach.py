"""What a monitor can be attached to: an adapted model, one of its streams, a NEO head, or a NEO adapter."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from neotta.adapters.neo import Recentering
from neotta.errors import ModelError, OptionError, UnknownNameError
from neotta.neo.centroid import Centroid
from neotta.neo.head import NEOHead
from neotta.neo.statefile import fingerprint
from neotta.neo.stream_head import StreamHead
from neotta.neo.stream_ids import StreamId, current, one
from neotta.neo.surgery import heads, need_stream

Watch = Callable[[Tensor], object]


class Target:
    """A NEO head: how to watch it, what it subtracts, and how to give it another centroid.

    Args:
        name: The name of the head in its model.
        head: The head.
    """

    def __init__(self, name: str, head: NEOHead) -> None:
        self.name = name
        self._head = head
        self.fingerprint = fingerprint(dict(head.named_parameters()))

    @property
    def neo(self) -> NEOHead:
        """The head."""
        return self._head

    @property
    def count(self) -> int:
        """How many samples stand behind its centroid."""
        return self.neo.count

    def centre(self) -> Tensor:
        """A copy of what it subtracts, (d,) float64."""
        return self.neo.centre(torch.float64).cpu()

    def blank(self) -> Centroid:
        """An empty centroid of its kind."""
        centroid = copy.deepcopy(self.neo.centroid)
        centroid.reset()
        return centroid

    def put(self, centroid: Centroid) -> None:
        """Give it another centroid."""
        self.neo.centroid.load_state(centroid.state())

    def reset(self) -> None:
        """Forget the adaptation."""
        self.neo.reset()

    def watch(self, watch: Watch) -> Callable[[], None]:
        """Have `watch` called with every batch of embeddings before it is answered; returns what ends that."""

        def hook(module: nn.Module, arguments: tuple[Any, ...]) -> None:
            if module is self._head:  # and not a copy, or the layer that it stands in for, which share its hooks
                self._show(arguments[0], watch)

        return self._head.register_forward_pre_hook(hook).remove

    def _show(self, embeddings: Tensor, watch: Watch) -> None:
        watch(embeddings)


class _Stream(Target):
    """One stream of a head that keeps many."""

    _head: StreamHead

    def __init__(self, name: str, head: StreamHead, stream: StreamId) -> None:
        super().__init__(name, head)
        self._stream = stream

    @property
    def count(self) -> int:
        state = self._head.streams.read(self._stream)
        return 0 if state is None else int(state["count"])

    def centre(self) -> Tensor:
        if self._head.streams.read(self._stream) is None:
            return torch.zeros(self._head.in_features, dtype=torch.float64)
        return self._head.centre_of(self._stream).double().cpu()

    def blank(self) -> Centroid:
        return self._head.streams.blank()

    def put(self, centroid: Centroid) -> None:
        self._head.streams.put(self._stream, centroid)

    def reset(self) -> None:
        self._head.reset(self._stream)

    def _show(self, embeddings: Tensor, watch: Watch) -> None:
        ids = current(len(embeddings) if embeddings.dim() > 1 else 1)
        mine = [place for place, item in enumerate(ids) if item == self._stream]
        if mine:
            watch(embeddings.reshape(len(ids), -1, embeddings.shape[-1])[mine])


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
            raise OptionError("this adapter is watched by another monitor already: remove that one first")
        self._adapter.observer = watch

        def end() -> None:
            self._adapter.observer = None

        return end


def find_target(model: nn.Module | Recentering, head: str | None = None, stream: StreamId | None = None) -> Target:
    """Find the NEO head behind whatever was given.

    Args:
        model: See above.
        head: The name of the head, for a model that has several.
        stream: Which of its streams, for a model that keeps one centroid for each.
    """
    if isinstance(model, Recentering):
        if head is not None or stream is not None:
            raise OptionError("head and stream choose a part of a model: an adapter has one head, and no streams")
        return _Adapter(model)
    if not isinstance(model, nn.Module):
        raise OptionError(f"a monitor watches an adapted model or a NEO adapter, got {type(model).__name__}")
    found = heads(model)
    need_stream(model, stream, "neotta.Monitor(model, stream='gate')")
    if head is None and len(found) > 1:
        raise ModelError(f"the model has {len(found)} heads ({', '.join(found)}): name one with head=")
    name = next(iter(found)) if head is None else head
    if name not in found:
        raise UnknownNameError("head", name, found)
    neo = found[name]
    return _Stream(name, neo, one(stream)) if isinstance(neo, StreamHead) else Target(name, neo)

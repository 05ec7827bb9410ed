"""What a monitor can be attached to: an adapted model, a NEO head, or a NEO adapter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from neotta.adapters.neo import Recentering
from neotta.errors import ModelError, OptionError, UnknownNameError
from neotta.models.surgery import heads
from neotta.neo import NEOHead
from neotta.statefile import fingerprint

Watch = Callable[[Tensor], object]


class Target:
    """The NEO head behind whatever was given, and how to watch and reset it.

    Args:
        model: See above.
        head: The name of the head, for a model that has several.
    """

    def __init__(self, model: nn.Module | Recentering, head: str | None = None) -> None:
        self._adapter = model if isinstance(model, Recentering) else None
        if isinstance(model, Recentering):
            self.name = model.head_name
        elif isinstance(model, nn.Module):
            self.name, self._head = _choose(model, head)
        else:
            raise OptionError(f"a monitor watches an adapted model or a NEO adapter, got {type(model).__name__}")
        self.fingerprint = fingerprint(dict(self.neo.named_parameters()))

    @property
    def neo(self) -> NEOHead:
        """The head; an adapter makes a new one when it is reset."""
        return self._head if self._adapter is None else self._adapter.neo

    def reset(self) -> None:
        """Forget the adaptation."""
        (self._adapter or self._head).reset()

    def watch(self, watch: Watch) -> Callable[[], None]:
        """Have `watch` called with every batch of embeddings before it is answered; returns what ends that."""
        if self._adapter is None:
            head = self._head

            def hook(module: nn.Module, arguments: tuple[Any, ...]) -> None:
                if module is head:  # and not a copy, or the layer that it stands in for, which share its hooks
                    watch(arguments[0])

            return head.register_forward_pre_hook(hook).remove
        adapter = self._adapter
        if adapter.observer is not None:
            raise OptionError("this adapter is watched by another monitor already: remove that one first")
        adapter.observer = watch

        def end() -> None:
            adapter.observer = None

        return end


def _choose(model: nn.Module, name: str | None) -> tuple[str, NEOHead]:
    found = heads(model)
    if name is None:
        if len(found) > 1:
            raise ModelError(f"the model has {len(found)} heads ({', '.join(found)}): name one with head=")
        return next(iter(found.items()))
    if name not in found:
        raise UnknownNameError("head", name, found)
    return name, found[name]

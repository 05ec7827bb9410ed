"""Replacing modules of a model, permanently or for one call."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Generic, TypeVar

from torch import nn

Kept = TypeVar("Kept", bound=nn.Module)


class Unregistered(Generic[Kept]):
    """Holds a module without registering it as a child, as a plain attribute would."""

    def __init__(self, module: Kept) -> None:
        self.module = module


class ModuleSwap:
    """Replaces modules of a model, wherever they occur, and puts them back.

    Use it as a context manager, or call `do` and `undo`.
    """

    def __init__(self, model: nn.Module, pairs: Mapping[nn.Module, nn.Module]) -> None:
        self._places = [
            (parent, name, child, pairs[child])
            for parent in model.modules()
            for name, child in parent._modules.items()
            if child is not None and child in pairs
        ]

    def do(self) -> None:
        """Insert the new modules."""
        for parent, name, _, new in self._places:
            parent._modules[name] = new

    def undo(self) -> None:
        """Put the old modules back."""
        for parent, name, old, _ in self._places:
            parent._modules[name] = old

    def __enter__(self) -> None:
        self.do()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()


def give_back(old: nn.Module, new: nn.Module) -> None:
    """Assign the current parameters and buffers of a replacement to the module it replaced.

    The tensors may have changed: the model may have moved, or a checkpoint may have been assigned.
    """
    for name in old._parameters:
        old._parameters[name] = new._parameters[name]
    for name in old._buffers:
        old._buffers[name] = new._buffers[name]
    old.training = new.training

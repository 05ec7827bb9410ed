"""Putting a module into a model in the place of another, for good or for the length of one call."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Generic, TypeVar

from torch import nn

Kept = TypeVar("Kept", bound=nn.Module)


class Unregistered(Generic[Kept]):
    """Holds a module without making it part of another (a plain attribute would register it as a child)."""

    def __init__(self, module: Kept) -> None:
        self.module = module


class ModuleSwap:
    """Exchanges modules of a model wherever they stand, and exchanges them back.

    Use it as a context manager for one call, or call `do` and `undo`. A module that stands in several places is
    exchanged in all of them.
    """

    def __init__(self, model: nn.Module, pairs: Mapping[nn.Module, nn.Module]) -> None:
        self._places = [
            (parent, name, child, pairs[child])
            for parent in model.modules()
            for name, child in parent._modules.items()
            if child is not None and child in pairs
        ]

    def do(self) -> None:
        """Put the new modules in."""
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
    """Hand the current parameters and buffers of a stand-in to the module it stood in for.

    They may be other tensors than before: the model may have moved, or a checkpoint may have been assigned.
    """
    for name in old._parameters:
        old._parameters[name] = new._parameters[name]
    for name in old._buffers:
        old._buffers[name] = new._buffers[name]
    old.training = new.training

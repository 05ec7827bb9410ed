"""Warn of models that adapt in training mode."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from neotta._warning import warn

_UNWARNED = "_warn_in_training_mode"


def watch_mode(model: nn.Module, heads: Iterable[nn.Module]) -> None:
    """Let the heads of a model warn, if it has layers that behave differently in training mode."""
    if any(isinstance(module, (_NormBase, _DropoutNd)) for module in model.modules()):
        for head in heads:
            head.__dict__[_UNWARNED] = True


def warn_of_training(head: nn.Module) -> None:
    """Warn that a head adapts in training mode, the first time."""
    if head.__dict__.pop(_UNWARNED, False):
        warn(
            "the model adapts in training mode, in which dropout and batch normalisation change its embeddings: call "
            "model.eval() first"
        )

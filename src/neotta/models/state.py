"""Saving what an adapted model has learnt, a few kilobytes, and giving it to a model again."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor, nn

from neotta.batchnorm import AdaptiveNorm
from neotta.errors import ModelError, StateMismatchError
from neotta.models.surgery import adapt, adaptation, check_module, heads, restore
from neotta.statefile import fingerprint, read_state, write_state


def save(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Save the adaptation state of a model alone: its centroid, a few kilobytes.

    The file is safetensors. It appears at once and whole: if saving is interrupted, an older file stays as it was.

    Raises:
        NotAdaptedError: The model is not adapted.
    """
    method, options = adaptation(model)
    about = {
        "kind": "model",
        "method": method,
        "options": options.model_dump(mode="json"),
        "heads": _fingerprints(model),
    }
    write_state(path, _state(model), about)


def load(model: nn.Module, path: str | os.PathLike[str], *, strict: bool = True) -> None:
    """Give a model the state that `save` wrote.

    A model that is not adapted yet is adapted as the file says. If anything is wrong, the model and its state
    stay as they were.

    Args:
        model: The model the state was saved from, or an equal one.
        path: The file.
        strict: Refuse a state that was saved with other head weights. Turn this off to use it in another
            precision or with a fine-tuned head.

    Raises:
        StateFileError: The file is missing or damaged.
        StateMismatchError: It belongs to another model or method.
    """
    check_module(model)
    tensors, about = read_state(path)
    if about.get("kind") != "model":
        raise StateMismatchError(f"{os.fspath(path)!r} holds the state of an adapter: use adapter.load(path)")
    was_adapted = any("_adaptation" in module.__dict__ for module in model.modules())
    try:
        adapt(model, about["method"], head=list(about["heads"]), **about["options"])
    except ModelError as error:
        raise StateMismatchError(f"{os.fspath(path)!r} does not fit this model: {error}") from error
    try:
        _check(model, tensors, about, strict, os.fspath(path))
    except StateMismatchError:
        if not was_adapted:
            restore(model)
        raise
    with torch.no_grad():
        for name, tensor in _moving(model).items():
            tensor.copy_(tensors[name])
    for name, neo in heads(model).items():  # by their own method, which holds the lock
        neo.centroid.load_state({key: tensors[f"{name}.{key}"] for key, _ in neo.centroid.named_buffers()})


def _check(model: nn.Module, tensors: dict[str, Tensor], about: dict[str, Any], strict: bool, path: str) -> None:
    mine = {name: tuple(tensor.shape) for name, tensor in _state(model).items()}
    theirs = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if mine != theirs:
        other = next(name for name in {**mine, **theirs} if mine.get(name) != theirs.get(name))
        shapes = f"shape {theirs.get(other)} there and {mine.get(other)} here"
        raise StateMismatchError(f"{path!r} belongs to another model: {other!r} has {shapes}")
    if strict and about["heads"] != _fingerprints(model):
        raise StateMismatchError(
            f"{path!r} was saved with other head weights: it belongs to another model (load it with strict=False if "
            "that is meant)"
        )


def _moving(model: nn.Module) -> dict[str, Tensor]:
    """The statistics that move along with the centroids (NEO-BN), by name."""
    norms = {name: module for name, module in model.named_modules() if isinstance(module, AdaptiveNorm)}
    return {f"{name}.{key}": value for name, norm in norms.items() for key, value in norm.moving().items()}


def _state(model: nn.Module) -> dict[str, Tensor]:
    """A copy of all that makes up the state, by name."""
    state = {name: tensor.clone() for name, tensor in _moving(model).items()}
    for name, neo in heads(model).items():
        state.update({f"{name}.{key}": value for key, value in neo.centroid.state().items()})
    return state


def _fingerprints(model: nn.Module) -> dict[str, str]:
    """A hash of the weights of every head."""
    return {name: fingerprint(dict(neo.named_parameters())) for name, neo in heads(model).items()}

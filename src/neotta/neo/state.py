"""Saving what an adapted model has learnt, a few kilobytes, and giving it to a model again."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor, nn

from neotta.errors import ModelError, StateMismatchError
from neotta.neo.fold import restore
from neotta.neo.norms import AdaptiveNorm
from neotta.neo.statefile import State, fingerprint, read_state
from neotta.neo.stream_head import StreamHead
from neotta.neo.stream_ids import StreamId, one, pack, unpack
from neotta.neo.surgery import adapt, adaptation, check_module, heads, stream_heads


def save(model: nn.Module, path: str | os.PathLike[str], *, stream: StreamId | None = None) -> None:
    """Save the adaptation state of a model alone: its centroid, a few kilobytes.

    The file is safetensors. It appears at once and whole: if saving is interrupted, an older file stays as it was.

    Args:
        model: The adapted model.
        path: The file.
        stream: Save this stream alone, for a model that keeps one centroid per stream (else all are saved). What is
            saved then is an ordinary state, as of a model that has met nothing but this stream.

    Raises:
        NotAdaptedError: The model is not adapted.
        InputError: There is no such stream.
    """
    state_of(model, stream=stream).save(path)


def load(
    model: nn.Module,
    state: str | os.PathLike[str] | State,
    *,
    strict: bool = True,
    stream: StreamId | None = None,
) -> None:
    """Give a model the state that `save` wrote or `merge` returned.

    A model that is not adapted yet is adapted as the file says. If anything is wrong, the model and its state
    stay as they were.

    Args:
        model: The model the state was saved from, or an equal one.
        state: The file, or what `neotta.merge` returned.
        strict: Refuse a state that was saved with other head weights. Turn this off to use it in another
            precision or with a fine-tuned head.
        stream: Give the state to this stream alone, of a model that keeps one centroid per stream.

    Raises:
        StateFileError: The file is missing or damaged.
        StateMismatchError: It belongs to another model or method.
    """
    check_module(model)
    source = "the state" if isinstance(state, State) else repr(os.fspath(state))
    tensors, about = state if isinstance(state, State) else read_state(state)
    if about.get("kind") != "model":
        raise StateMismatchError(f"{source} holds the state of an adapter: use adapter.load(path)")
    if stream is not None and about.get("streams"):
        raise StateMismatchError(f"{source} holds many streams: save one alone, neotta.save(model, path, stream=...)")
    was_adapted = any("_adaptation" in module.__dict__ for module in model.modules())
    try:
        _adapt_like(model, about, many=stream is not None or bool(about.get("streams")))
    except ModelError as error:
        raise StateMismatchError(f"{source} does not fit this model: {error}") from error
    try:
        _check(model, tensors, about, strict, source)
    except StateMismatchError:
        if not was_adapted:
            restore(model)
        raise
    _give(model, tensors, stream)


def state_of(model: nn.Module, *, stream: StreamId | None = None) -> State:
    """A copy of the adaptation state of a model, or of one of its streams."""
    method, options, streams = adaptation(model)
    about = {
        "kind": "model",
        "method": method,
        "options": options.model_dump(mode="json"),
        "heads": _fingerprints(model),
        "streams": streams is not None and stream is None,
    }
    if stream is not None:
        return State(
            {
                f"{name}.{key}": tensor
                for name, neo in stream_heads(model).items()
                for key, tensor in neo.streams.centroid(one(stream)).state().items()
            },
            about,
        )
    tensors = {name: tensor.clone() for name, tensor in _moving(model).items()}
    for name, neo in heads(model).items():
        own = _packed(neo) if isinstance(neo, StreamHead) else neo.centroid.state()
        tensors.update({f"{name}.{key}": tensor for key, tensor in own.items()})
    return State(tensors, about)


def _adapt_like(model: nn.Module, about: dict[str, Any], many: bool) -> None:
    """Adapt a model as a state says; how many streams are held in memory stays its own affair."""
    limits: dict[str, Any] = {"streams": True} if many else {}
    if many and any(isinstance(module, StreamHead) for module in model.modules()):
        now = adaptation(model).streams
        limits.update({} if now is None else now._asdict())
    adapt(model, about["method"], head=list(about["heads"]), **limits, **about["options"])


def _check(model: nn.Module, tensors: dict[str, Tensor], about: dict[str, Any], strict: bool, source: str) -> None:
    many = bool(about.get("streams"))
    mine = {name: tuple(tensor.shape) for name, tensor in _moving(model).items()}
    for name, neo in heads(model).items():
        if isinstance(neo, StreamHead):
            mine.update({f"{name}.{key}": tuple(rows.shape[1:]) for key, rows in neo.streams.named_buffers()})
            mine.update({f"{name}.ids": ()} if many else {})
        else:
            mine.update({f"{name}.{key}": tuple(value.shape) for key, value in neo.centroid.named_buffers()})
    theirs = {name: tuple(tensor.shape[1:] if many else tensor.shape) for name, tensor in tensors.items()}
    if mine != theirs:
        other = next(name for name in {**mine, **theirs} if mine.get(name) != theirs.get(name))
        shapes = f"shape {theirs.get(other)} there and {mine.get(other)} here"
        raise StateMismatchError(f"{source} belongs to another model: {other!r} has {shapes}")
    if strict and about["heads"] != _fingerprints(model):
        raise StateMismatchError(
            f"{source} was saved with other head weights: it belongs to another model (load it with strict=False if "
            "that is meant)"
        )


@torch.no_grad()
def _give(model: nn.Module, tensors: dict[str, Tensor], stream: StreamId | None) -> None:
    """Write a state that fits into a model."""
    for name, tensor in _moving(model).items():
        tensor.copy_(tensors[name])
    for name, neo in heads(model).items():
        if not isinstance(neo, StreamHead):  # by its own method, which holds the lock
            neo.centroid.load_state({key: tensors[f"{name}.{key}"] for key, _ in neo.centroid.named_buffers()})
            continue
        mine = {key: tensors[f"{name}.{key}"] for key, _ in neo.streams.named_buffers()}
        if stream is None:
            neo.streams.load_state(unpack(tensors[f"{name}.ids"]), mine)
        else:
            neo.streams.write(one(stream), {key: tensor[None] for key, tensor in mine.items()})


def _moving(model: nn.Module) -> dict[str, Tensor]:
    """The statistics that move along with the centroids (NEO-BN), by name."""
    norms = {name: module for name, module in model.named_modules() if isinstance(module, AdaptiveNorm)}
    return {f"{name}.{key}": value for name, norm in norms.items() for key, value in norm.moving().items()}


def _packed(neo: StreamHead) -> dict[str, Tensor]:
    """All streams of a head as tensors, the ids among them."""
    ids, tensors = neo.streams.state()
    return {**tensors, "ids": pack(ids)}


def _fingerprints(model: nn.Module) -> dict[str, str]:
    """A hash of the weights of every head."""
    return {name: fingerprint(dict(neo.named_parameters())) for name, neo in heads(model).items()}

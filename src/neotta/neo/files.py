"""Save and load the adaptation state of a model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from neotta.errors import ModelError, OptionError, StateError, StateMismatchError, UnknownNameError
from neotta.neo.adapt import adapt
from neotta.neo.codec import NAMELESS, HeadStates, StateFile
from neotta.neo.find_head import find_heads
from neotta.neo.fold import is_folded, undo_adapt
from neotta.neo.head import NEOHead
from neotta.neo.norms import AdaptiveNorm
from neotta.neo.output_head import NAME as OUTPUT
from neotta.neo.output_head import output_fingerprint
from neotta.neo.reference_file import Reference
from neotta.neo.state import LARGEST, Rule
from neotta.neo.statefile import Array, fingerprint
from neotta.neo.stream_ids import StreamId
from neotta.neo.surgery import adaptation, check_module, heads, one_at_a_time, stand_ins


def save(model: nn.Module, path: str | os.PathLike[str], *, stream: StreamId | None = None) -> None:
    """Save the adaptation state of a model, a few kilobytes.

    The safetensors file is written atomically.

    Args:
        model: The adapted model.
        path: The file.
        stream: Save only this stream of a model with streams; by default all of them. The result is an ordinary state,
            as of a model that has seen only this stream.

    Raises:
        NotAdaptedError: The model is not adapted.
        InputError: The stream does not exist.
    """
    state_of(model, stream=stream).save(path)


@one_at_a_time
def load(
    model: nn.Module,
    state: str | os.PathLike[str] | StateFile,
    *,
    strict: bool = True,
    stream: StreamId | None = None,
) -> None:
    """Load a state: a file of `save`, of an adapter of the NEO family, of a server or another runtime, or of `merge`.

    A model that is not adapted yet is adapted as the state requires. On error, nothing changes.

    Args:
        model: The model the state was saved from, or a copy of it.
        state: A file, or the result of `neotta.merge`.
        strict: Raise an error if the head weights differ. Turn this off for a fine-tuned head.
        stream: Load the state into this stream of a model with streams.

    Raises:
        StateFileError: The file is missing or damaged.
        StateMismatchError: The state belongs to another model or method.
        StateError: The state contains invalid values, such as NaN or a negative count.
    """
    check_module(model)
    file, source = opened(state)
    was_adapted = bool(stand_ins(model))
    if not was_adapted:
        _adapt_like(model, file, source, strict, stream is not None or file.many)
    try:
        found = file.fitted(_described(model), source, strict=strict, stream=stream, weight=_weight(model))
        moving = {name: _fitting(file, source, name, tensor) for name, tensor in _moving(model).items()}
        put({neo: found[name] for name, neo in heads(model).items()}, source, stream)
    except StateError as error:
        folded = is_folded(model)
        if not was_adapted:
            undo_adapt(model)
        if folded and isinstance(error, StateMismatchError):
            raise StateMismatchError(f"{source} does not fit a folded bias: neotta.restore(model) first") from error
        raise
    for name, tensor in _moving(model).items():
        tensor.copy_(moving[name])


def opened(state: str | os.PathLike[str] | StateFile) -> tuple[StateFile, str]:
    """A state file, and what messages call it."""
    if isinstance(state, StateFile):
        return state, "the state"
    if not isinstance(state, (str, os.PathLike)):
        raise StateError(f"expected a file of neotta.save or the result of neotta.merge, got {type(state).__name__}")
    return StateFile.load(state), repr(os.fspath(state))


@one_at_a_time
def state_of(model: nn.Module, *, stream: StreamId | None = None) -> StateFile:
    """Return a copy of the adaptation state of a model, or of one of its streams."""
    states = {name: states_of(neo, stream, output_fingerprint(model)) for name, neo in heads(model).items()}
    moving = {name: tensor.detach().cpu().numpy().copy() for name, tensor in _moving(model).items()}
    return replace(_described(model), heads=states, moving={} if stream is not None else moving)


def _described(model: nn.Module) -> StateFile:
    method, rule, _, known, _ = adaptation(model)
    own = {name: described(neo, output_fingerprint(model)) for name, neo in heads(model).items()}
    return StateFile(method, rule.model_dump(mode="json"), own, reference=known)


def described(neo: NEOHead, model: str | None = None) -> HeadStates:
    """What the states of a head belong to; `model` identifies a model whose weight is not that of a linear layer."""
    streams = neo.streams
    owner = neo.owner()
    if "weight" not in owner and model is not None:
        owner["weight"] = model
    return HeadStates(
        owner, neo.space, streams.size, streams.layout.fields, [] if streams.many else None, np.empty((0, 0))
    )


def states_of(neo: NEOHead, stream: StreamId | None = None, model: str | None = None) -> HeadStates:
    """A copy of the states of a head, or of one of its streams; for `model`, see `described`."""
    ids, states = neo.streams.everything() if stream is None else ([], neo.streams.state(stream))
    many = neo.streams.many and stream is None
    return replace(described(neo, model), ids=ids if many else None, table=states.cpu().double().numpy())


def put(found: Mapping[NEOHead, HeadStates], source: str, stream: StreamId | None = None) -> None:
    """Give heads the states that fit them, all or none, in place of everything or as one stream."""
    tables = {neo: torch.from_numpy(np.ascontiguousarray(states.table)) for neo, states in found.items()}
    for neo, table in tables.items():
        check_offsets(neo.streams.rule, table, source)
    for neo, table in tables.items():
        if stream is None:
            neo.streams.replace(found[neo].ids or [], table)
        else:
            neo.streams.put(table, stream)


def check_offsets(rule: Rule, states: Tensor, source: str) -> None:
    """Check that what states, (S, width), subtract is not absurd."""
    if not bool((rule.offset(states).abs() <= 10 * LARGEST).all()):
        raise StateError(f"{source} would subtract numbers beyond {10 * LARGEST:g}: it makes no sense")


def _weight(model: nn.Module) -> Array | None:
    """The weight of the only head of a model, (C, d)."""
    neo, *others = heads(model).values()
    return None if others else known_weight(neo)


def known_weight(neo: NEOHead) -> Array | None:
    """The weight that a mean of embeddings becomes one of logits with, (C, d), if it is known."""
    weight = neo.linear()[0]
    return None if weight is None else weight.detach().double().cpu().numpy()


def _adapt_like(model: nn.Module, file: StateFile, source: str, strict: bool, many: bool) -> None:
    where = {"at": "logits"} if OUTPUT in file.heads else {} if NAMELESS in file.heads else {"head": [*file.heads]}
    known = file.reference
    try:
        if known is not None and not strict:
            layers = {} if OUTPUT in known.heads else find_heads(model, [*known.heads])
            hashes = {name: fingerprint(dict(layer.named_parameters())) for name, layer in layers.items()}
            known = Reference(known.heads, hashes or {OUTPUT: output_fingerprint(model)})
        adapt(model, file.method, reference=known, streams=many, **where, **file.options)
    except (ModelError, OptionError, UnknownNameError) as error:
        raise StateMismatchError(f"{source} does not fit this model: {error}") from error


def _fitting(file: StateFile, source: str, name: str, moving: Tensor) -> Tensor:
    values = file.moving.get(name)
    if values is None or values.shape != moving.shape:
        raise StateMismatchError(
            f"{source} belongs to another model: it has no {name!r} of shape {tuple(moving.shape)}"
        )
    if values.dtype.kind != "f" or not np.isfinite(values).all():
        raise StateError(f"{source} cannot be used: {name!r} holds NaN, Inf or another kind of numbers")
    return torch.from_numpy(values)


def _moving(model: nn.Module) -> dict[str, Tensor]:
    """The moving BatchNorm statistics (NEO-BN) by name."""
    norms = {name: module for name, module in model.named_modules() if isinstance(module, AdaptiveNorm)}
    return {f"{name}.{key}": value for name, norm in norms.items() for key, value in norm.moving().items()}

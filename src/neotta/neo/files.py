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
from neotta.neo.output_head import fingerprints_of, output_fingerprint
from neotta.neo.reference_file import Reference
from neotta.neo.state import LARGEST, Rule
from neotta.neo.statefile import Array
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
    method, _, _, known, _ = adaptation(model)
    try:
        found = fitting(file, source, method, _heads(model), strict=strict, stream=stream, reference=known)
        moving = {name: _fitting(file, source, name, tensor) for name, tensor in _moving(model).items()}
    except StateError as error:
        folded = is_folded(model)
        if not was_adapted:
            undo_adapt(model)
        if folded and isinstance(error, StateMismatchError):
            raise StateMismatchError(f"{source} does not fit a folded bias: neotta.restore(model) first") from error
        raise
    put(found, stream)
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
    method, _, _, known, _ = adaptation(model)
    found = _heads(model)
    moving = {name: tensor.detach().cpu().numpy().copy() for name, tensor in _moving(model).items() if stream is None}
    return file_of(method, found, stream=stream, moving=moving, reference=known)


def file_of(
    method: str,
    heads: Mapping[str, NEOHead],
    *,
    stream: StreamId | None = None,
    moving: dict[str, Array] | None = None,
    reference: Reference | None = None,
) -> StateFile:
    """A copy of the states of heads, or of one of their streams, as a file."""
    options = next(iter(heads.values())).streams.rule.model_dump(mode="json")
    states = {}
    for name, neo in heads.items():
        ids, table = neo.streams.everything() if stream is None else ([], neo.streams.state(stream))
        known = ids if neo.streams.many and stream is None else None
        states[name] = replace(_blank(neo), ids=known, table=table.cpu().double().numpy())
    return StateFile(method, options, states, moving or {}, reference)


def fitting(
    file: StateFile,
    source: str,
    method: str,
    heads: Mapping[str, NEOHead],
    *,
    strict: bool = True,
    stream: StreamId | None = None,
    reference: Reference | None = None,
) -> dict[NEOHead, HeadStates]:
    """The states in a file for heads that they fit; `put` takes them. See `StateFile.fitted`."""
    rules = [neo.streams.rule for neo in heads.values()]
    blank = {name: _blank(neo) for name, neo in heads.items()}
    mine = StateFile(method, rules[0].model_dump(mode="json"), blank, reference=reference)
    weights = [known_weight(neo) for neo in heads.values()]
    weight = weights[0] if len(weights) == 1 else None
    found = file.fitted(mine, source, strict=strict, stream=stream, weight=weight)
    for rule, states in zip(rules, found.values(), strict=True):
        check_offsets(rule, torch.from_numpy(states.table), source)
    return {neo: found[name] for name, neo in heads.items()}


def put(found: Mapping[NEOHead, HeadStates], stream: StreamId | None = None) -> None:
    """Give heads states that fit them, in place of everything or as one stream."""
    for neo, states in found.items():
        table = torch.from_numpy(np.ascontiguousarray(states.table))
        if stream is None:
            neo.streams.replace(states.ids or [], table)
        else:
            neo.streams.put(table, stream)


def check_offsets(rule: Rule, states: Tensor, source: str) -> None:
    """Check that what states, (S, width), subtract is not absurd."""
    if not bool((rule.offset(states).abs() <= 10 * LARGEST).all()):
        raise StateError(f"{source} would subtract numbers beyond {10 * LARGEST:g}: it makes no sense")


def known_weight(neo: NEOHead) -> Array | None:
    """The weight that a mean of embeddings becomes one of logits with, (C, d), if it is known."""
    weight = neo.linear()[0]
    return None if weight is None else weight.detach().cpu().double().numpy()


def _blank(neo: NEOHead) -> HeadStates:
    streams = neo.streams
    ids: list[StreamId] | None = [] if streams.many else None
    return HeadStates(neo.owner(), neo.space, streams.size, streams.layout.fields, ids, np.empty((0, 0)))


def _heads(model: nn.Module) -> dict[str, NEOHead]:
    """The heads of a model; an output knows the model by its last weights."""
    found = heads(model)
    for neo in found.values():
        neo.last = output_fingerprint(model)
    return found


def _adapt_like(model: nn.Module, file: StateFile, source: str, strict: bool, many: bool) -> None:
    where = {"at": "logits"} if OUTPUT in file.heads else {} if NAMELESS in file.heads else {"head": [*file.heads]}
    known = file.reference
    try:
        if known is not None and not strict:
            layers = {} if OUTPUT in known.heads else find_heads(model, [*known.heads])
            known = Reference(known.heads, fingerprints_of(model, layers))
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

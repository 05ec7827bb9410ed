"""Save and load the adaptation state of a model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from neotta.errors import ModelError, StateError, StateMismatchError
from neotta.neo.adapt import adapt
from neotta.neo.find_head import find_heads
from neotta.neo.fold import is_folded, undo_adapt
from neotta.neo.norms import AdaptiveNorm
from neotta.neo.output_head import NAME as OUTPUT
from neotta.neo.output_head import OutputHead, output_fingerprint
from neotta.neo.reference_file import PREFIX, Reference
from neotta.neo.state import LARGEST, Layout, Rule
from neotta.neo.statefile import State, fingerprint, part_of, read_state
from neotta.neo.stream_ids import StreamId, pack, unpack
from neotta.neo.surgery import adaptation, check_module, heads, one_at_a_time, stand_ins
from neotta.neo.variants import VARIANTS


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
    state: str | os.PathLike[str] | State,
    *,
    strict: bool = True,
    stream: StreamId | None = None,
) -> None:
    """Load a state written by `save` or returned by `merge`.

    A model that is not adapted yet is adapted as the state requires. On error, nothing changes.

    Args:
        model: The model the state was saved from, or a copy of it.
        state: A file, or the result of `neotta.merge`.
        strict: Raise an error if the head weights differ. Turn this off for another precision or a fine-tuned head.
        stream: Load the state into this stream of a model with streams.

    Raises:
        StateFileError: The file is missing or damaged.
        StateMismatchError: The state belongs to another model or method.
        StateError: The state contains invalid values, such as NaN or a negative count.
    """
    check_module(model)
    if not isinstance(state, (State, str, os.PathLike)):
        raise StateError(f"expected a file of neotta.save or the result of neotta.merge, got {type(state).__name__}")
    source = "the state" if isinstance(state, State) else repr(os.fspath(state))
    tensors, about = state if isinstance(state, State) else read_state(state)
    if about.get("kind") == "reference":
        raise StateMismatchError(f"{source} contains a reference, not a state: use neotta.adapt(model, reference=path)")
    if about.get("kind") != "model":
        raise StateMismatchError(f"{source} contains the state of an adapter: use adapter.load(path)")
    check_about(about, source)
    if stream is not None and about.get("streams"):
        raise StateMismatchError(
            f"{source} contains many streams: save one of them with neotta.save(model, path, stream=...)"
        )
    was_adapted = bool(stand_ins(model))
    try:
        known = reference_in(tensors, about, source)
        if known is not None and not strict and OUTPUT in known.heads:
            known.fingerprints = {OUTPUT: output_fingerprint(model)}
        elif known is not None and not strict:
            known.belongs_to(find_heads(model, list(about["heads"])))
        _adapt_like(model, about, stream is not None or bool(about.get("streams")), known)
    except ModelError as error:
        raise StateMismatchError(f"{source} does not fit this model: {error}") from error
    try:
        states = _check(model, tensors, about, strict, source)
    except StateError:
        if not was_adapted:
            undo_adapt(model)
        raise
    with torch.no_grad():
        for name, tensor in _moving(model).items():
            tensor.copy_(tensors[name])
    for name, neo in heads(model).items():
        if stream is None:
            neo.streams.replace(*states[name])
        else:
            neo.streams.put(states[name][1], stream)


@one_at_a_time
def state_of(model: nn.Module, *, stream: StreamId | None = None) -> State:
    """Return a copy of the adaptation state of a model, or of one of its streams."""
    method, rule, streams, known, _ = adaptation(model)
    many = streams is not None and stream is None
    about: dict[str, Any] = {
        "kind": "model",
        "method": method,
        "options": rule.model_dump(mode="json"),
        "heads": _fingerprints(model),
        "streams": many,
    }
    tensors: dict[str, Tensor] = {}
    if known is not None:
        about["reference"] = known.digest
        tensors.update({f"{PREFIX}{name}": torch.as_tensor(array) for name, array in known.arrays().items()})
    if stream is None:
        tensors.update({name: tensor.clone() for name, tensor in _moving(model).items()})
    for name, neo in heads(model).items():
        ids, states = neo.streams.everything() if stream is None else ([], neo.streams.state(stream))
        tensors.update(
            {f"{name}.{key}": value for key, value in entries(neo.streams.layout, ids, states, many=many).items()}
        )
    return State(tensors, about)


def entries(layout: Layout, ids: list[StreamId], states: Tensor, *, many: bool) -> dict[str, Tensor]:
    """States, (S, width), as entries of a file: a tensor for each field, with the ids of streams."""
    fields = dict(zip(layout.fields, layout.split(states), strict=True))
    if many:
        return {**fields, "ids": torch.from_numpy(pack(ids))}
    return {name: field[0] for name, field in fields.items()}


def states_in(layout: Layout, rule: Rule, part: Mapping[str, Tensor], many: bool) -> tuple[list[StreamId], Tensor]:
    """The ids of streams and their states, (S, width), in the entries of a head."""
    shapes = {name: field.shape for name, field in layout.fields.items()}
    theirs = {name: tuple(tensor.shape[many:]) for name, tensor in part.items() if name != "ids"}
    if theirs != shapes or many is not ("ids" in part):
        raise StateMismatchError(
            f"expected the entries {shapes}{' of each stream, and ids' if many else ''}, got {theirs}"
        )
    ids = unpack(part["ids"].cpu().numpy()) if many else []
    if many and (len(set(ids)) != len(ids) or {len(part[name]) for name in shapes} != {len(ids)}):
        raise StateError("a stream occurs twice in this state, or there are not as many ids as rows")
    for name, field in layout.fields.items():
        value = part[name]
        if not value.is_floating_point():
            raise StateError(f"entry {name!r} of this state holds {value.dtype}, expected real numbers")
        if not bool(((value >= field.least) & (value <= field.most) & value.isfinite()).all()):
            raise StateError(f"entry {name!r} of this state holds NaN, Inf or numbers out of range")
    rows = [part[name].cpu().double() for name in shapes]
    states = layout.join([row if many else row[None] for row in rows])
    if not bool((rule.offset(states).abs() <= 10 * LARGEST).all()):
        raise StateError(f"this state would subtract numbers beyond {10 * LARGEST:g}: it makes no sense")
    return ids, states


def check_about(about: Mapping[str, Any], source: str) -> None:
    """Check that the description of a model's state says what is needed to use it."""
    method, heads, options = about.get("method"), about.get("heads"), about.get("options")
    if not isinstance(method, str) or method not in VARIANTS:
        raise StateMismatchError(f"{source} is of the method {method!r}, which is not known here")
    if not isinstance(heads, dict) or not heads or not isinstance(options, dict):
        raise StateMismatchError(f"{source} does not say which heads and options it belongs to")
    if unknown := set(options) - set(VARIANTS[method].model_fields):
        raise StateMismatchError(f"{source} has an option that {method} does not have: {min(unknown)!r}")


def reference_in(tensors: dict[str, Tensor], about: Mapping[str, Any], source: str) -> Reference | None:
    """Take the reference out of the tensors of a state, if it has one."""
    if "reference" not in about:
        return None
    return Reference.of({name: tensor.numpy() for name, tensor in part_of(tensors, PREFIX).items()}, about)


def _adapt_like(model: nn.Module, about: dict[str, Any], many: bool, known: Reference | None) -> None:
    limits: dict[str, Any] = {"streams": True} if many else {}
    present = adaptation(model).streams if many and stand_ins(model) else None
    limits.update({} if present is None else present._asdict())
    where: dict[str, Any] = {"at": "logits"} if OUTPUT in about["heads"] else {"head": list(about["heads"])}
    adapt(model, about["method"], reference=known, **where, **limits, **about["options"])


def _check(
    model: nn.Module,
    tensors: dict[str, Tensor],
    about: dict[str, Any],
    strict: bool,
    source: str,
) -> dict[str, tuple[list[StreamId], Tensor]]:
    mine = {name: tensor.shape for name, tensor in _moving(model).items()}
    others = (PREFIX, *(f"{name}." for name in heads(model)))
    theirs = {name: t.shape for name, t in tensors.items() if not name.startswith(others)}
    try:
        if mine != theirs:
            other = next(name for name in {**mine, **theirs} if mine.get(name) != theirs.get(name))
            raise StateMismatchError(f"{other!r} has shape {theirs.get(other)} there and {mine.get(other)} here")
        many = bool(about.get("streams"))
        states = {
            name: states_in(neo.streams.layout, neo.streams.rule, part_of(tensors, f"{name}."), many)
            for name, neo in heads(model).items()
        }
        for name, moving in _moving(model).items():
            if tensors[name].dtype != moving.dtype or not bool(tensors[name].isfinite().all()):
                raise StateError(f"entry {name!r} of this state holds NaN, Inf or another kind of numbers")
    except StateMismatchError as error:
        raise StateMismatchError(f"{source} belongs to another model: {error}") from error
    except StateError as error:
        raise StateError(f"{source} cannot be used: {error}") from error
    if strict and about["heads"] != _fingerprints(model):
        if is_folded(model):
            raise StateMismatchError(f"{source} does not fit a folded bias: neotta.restore(model) first")
        raise StateMismatchError(
            f"{source} was saved with other head weights: it belongs to another model (pass strict=False to load it "
            "anyway)"
        )
    return states


def _moving(model: nn.Module) -> dict[str, Tensor]:
    """The moving BatchNorm statistics (NEO-BN) by name."""
    norms = {name: module for name, module in model.named_modules() if isinstance(module, AdaptiveNorm)}
    return {f"{name}.{key}": value for name, norm in norms.items() for key, value in norm.moving().items()}


def _fingerprints(model: nn.Module) -> dict[str, str]:
    """Hash of the weights of every head; of the model's last ones, if its output is re-centered."""
    return {
        name: output_fingerprint(model) if isinstance(neo, OutputHead) else fingerprint(dict(neo.named_parameters()))
        for name, neo in heads(model).items()
    }

"""Merge adaptation states exactly."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from neotta.errors import InputError, OptionError, StateMismatchError
from neotta.neo.files import check_about, entries, reference_in, state_of, states_in
from neotta.neo.reference_file import PREFIX
from neotta.neo.state import Layout, Rule
from neotta.neo.statefile import State, read_state
from neotta.neo.stream_ids import StreamId
from neotta.neo.variants import VARIANTS, mergeable, rule_of


def merge(states: Iterable[str | os.PathLike[str] | State | nn.Module]) -> State:
    """Merge states of one model exactly, as if one model had seen all their samples.

    The order does not matter, and merged states can be merged again. Streams with the same id are merged. A sample
    contained in several states is counted several times.

    ```python
    neotta.merge(["monday.safetensors", "tuesday.safetensors"]).save("week.safetensors")
    neotta.load(model, neotta.merge(paths))
    ```

    Args:
        states: Files written by `neotta.save`, adapted models, or merged states.

    Returns:
        A state with a method `save(path)`, accepted by `neotta.load`.

    Raises:
        StateMismatchError: They belong to different models or methods.
        OptionError: They are moving averages, which depend on the order of the batches.
        StateFileError: A file is missing or damaged.
        StateError: A state holds values that make no sense, such as NaN or a negative count.
    """
    read = [_read(state) for state in states]
    for state, source in read:
        check_about(state.about, source)
    if not read:
        raise InputError("nothing to merge: pass at least one state")
    (first, about), source = read[0]
    for state, name in read[1:]:
        _check(about, state.about, source, name)
    options = VARIANTS[about["method"]].make(about["method"], about["options"])
    if not mergeable(options):
        raise OptionError(
            f"a moving average ({about['method']}) cannot be merged: it depends on the order of its batches"
        )
    many, known = bool(about.get("streams")), reference_in(first, about, source)
    merged = {name: tensor for name, tensor in first.items() if name.startswith(PREFIX)}
    for head in about["heads"]:
        rule = rule_of(options, None if known is None else known.heads[head].clean)
        layout = rule.layout(_size(first, head, rule, source))
        parts = [_states(state.tensors, name, head, layout, rule, many) for state, name in read]
        table = entries(layout, *merge_tables(parts, layout, rule, many), many=many)
        merged.update({f"{head}.{key}": value for key, value in table.items()})
    return State(merged, about)


def _read(state: str | os.PathLike[str] | State | nn.Module) -> tuple[State, str]:
    if isinstance(state, State):
        return state, "a merged state"
    if isinstance(state, nn.Module):
        return state_of(state), f"the state of a {type(state).__name__}"
    if not isinstance(state, str | os.PathLike):
        raise InputError(f"expected a file, an adapted model or a merged state, got {type(state).__name__}")
    loaded = read_state(state)
    if loaded.about.get("kind") != "model":
        raise StateMismatchError(
            f"{os.fspath(state)!r} contains the state of an adapter: only states of models can be merged"
        )
    return loaded, repr(os.fspath(state))


def _check(mine: dict[str, Any], theirs: dict[str, Any], one: str, other: str) -> None:
    for key, what in {
        "heads": "other head weights",
        "method": "another method",
        "options": "other options",
        "reference": "another reference",
        "streams": "a different setting of streams (one state per stream)",
    }.items():
        if (mine.get(key) or None) != (theirs.get(key) or None):
            raise StateMismatchError(f"{other} cannot be merged with {one}: it was saved with {what}")


def _size(tensors: dict[str, Tensor], head: str, rule: Rule, source: str) -> int:
    vector = tensors.get(f"{head}.{'shift' if rule.space == 'logits' else 'total'}")
    if vector is None or vector.dim() == 0:
        raise StateMismatchError(f"{source} cannot be merged: it does not hold the state of {head!r}")
    return vector.shape[-1]


def _states(
    tensors: dict[str, Tensor], source: str, head: str, layout: Layout, rule: Rule, many: bool
) -> tuple[list[StreamId], Tensor]:
    part = {name.removeprefix(f"{head}."): value for name, value in tensors.items() if name.startswith(f"{head}.")}
    try:
        return states_in(layout, rule, part, many)
    except StateMismatchError as error:
        raise StateMismatchError(f"{source} cannot be merged: {error}") from error


def merge_tables(
    parts: list[tuple[list[StreamId], Tensor]], layout: Layout, rule: Rule, many: bool
) -> tuple[list[StreamId], Tensor]:
    """Merge tables by stream; a state without streams is that of stream 0."""
    places: dict[StreamId, int] = {}
    for ids, _ in parts:
        for item in ids if many else [0]:
            places.setdefault(item, len(places))
    total = layout.blank(len(places))
    for ids, states in parts:
        rows = torch.tensor([places[item] for item in (ids if many else [0])], dtype=torch.int64)
        total[rows] = rule.merged(total[rows], states, layout)
    return list(places), total

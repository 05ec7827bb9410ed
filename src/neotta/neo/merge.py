"""Merge adaptation states exactly."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from neotta.errors import InputError, OptionError, StateMismatchError
from neotta.neo.reference_file import PREFIX
from neotta.neo.rules import Rule
from neotta.neo.state import check_about, check_weights, reference_in, state_of
from neotta.neo.state_checks import check_fields, check_ids, completed
from neotta.neo.statefile import State, read_state
from neotta.neo.stream_ids import StreamId, pack, unpack
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
        rule = rule_of(options, None if known is None else known.heads[head].classes)
        ids, total = _merged([_table(state.tensors, name, head, many, rule) for state, name in read], rule)
        fields = rule.fields(total.mean.shape[-1])
        like = {key: first.get(f"{head}.{key}", first[f"{head}.mean"]) for key in fields}  # it may lack new entries
        check_fields(fields, total._asdict(), like)
        if many:
            merged[f"{head}.ids"] = pack(ids)
        for key, tensor in total._asdict().items():
            merged[f"{head}.{key}"] = (tensor if many else tensor[0]).to(like[key].dtype)
    return State(merged, about)


def _read(state: str | os.PathLike[str] | State | nn.Module) -> tuple[State, str]:
    """Read a state; also return its name for messages."""
    if isinstance(state, State):
        return state, "a merged state"
    if isinstance(state, nn.Module):
        return state_of(state), f"the state of a {type(state).__name__}"
    if not isinstance(state, str | os.PathLike):
        raise InputError(f"expected a file, an adapted model or a merged state, got {type(state).__name__}")
    found = read_state(state)
    if found.about.get("kind") != "model":
        raise StateMismatchError(
            f"{os.fspath(state)!r} contains the state of an adapter: only states of models can be merged"
        )
    return found, repr(os.fspath(state))


def _check(mine: dict[str, Any], theirs: dict[str, Any], one: str, other: str) -> None:
    for key, what in {
        "heads": "other head weights",
        "method": "another method",
        "options": "other options",
        "reference": "another reference",
        "streams": "a different setting of streams (one centroid per stream)",
    }.items():
        if (mine.get(key) or None) != (theirs.get(key) or None):
            raise StateMismatchError(f"{other} cannot be merged with {one}: it was saved with {what}")


def _table(tensors: dict[str, Tensor], source: str, head: str, many: bool, rule: Rule) -> tuple[list[StreamId], Any]:
    """The streams of one head, (S, ...) each; a single centroid counts as one stream."""
    try:
        size = tensors[f"{head}.mean"].shape[-1:].numel()
        mine = {key: tensors[f"{head}.{key}"].cpu() for key in rule.State._fields if f"{head}.{key}" in tensors}
        filled = completed(rule.fields(size), mine)
        rows = {key: filled[key] for key in rule.State._fields}
        ids: list[StreamId] = unpack(tensors[f"{head}.ids"]) if many else [0]
    except KeyError as error:
        raise StateMismatchError(f"{source} cannot be merged: it lacks the entry {error}") from error
    rows = rows if many else {key: row[None] for key, row in rows.items()}
    fields = rule.fields(rows["mean"].shape[-1] if rows["mean"].dim() else 0)
    for key, field in fields.items():
        if rows[key].shape[1:] != field.shape:
            raise StateMismatchError(f"{source} cannot be merged: {key!r} has the shape {tuple(rows[key].shape)}")
    check_ids(ids, rows)
    check_fields(fields, rows, {key: _like(field.kind, torch.float64) for key, field in fields.items()})
    check_weights(rows)
    return ids, rule.State(*(row.double() if row.is_floating_point() else row for row in rows.values()))


def _like(kind: str, real: torch.dtype) -> Tensor:
    """A tensor of the kind that a field is kept in."""
    return torch.empty(0, dtype=torch.int64 if kind == "count" else real)


def _merged(parts: list[tuple[list[StreamId], Any]], rule: Rule) -> tuple[list[StreamId], Any]:
    """Merge tables by stream."""
    places: dict[StreamId, int] = {}
    for ids, _ in parts:
        for item in ids:
            places.setdefault(item, len(places))
    total = rule.State(*(torch.zeros(len(places), *column.shape[1:], dtype=column.dtype) for column in parts[0][1]))
    for ids, part in parts:
        rows = torch.tensor([places[item] for item in ids], dtype=torch.int64)
        mine = rule.State(*(column[rows] for column in total))
        rule.merge(mine, part)
        for column, values in zip(total, mine, strict=True):
            column[rows] = values
    return list(places), total

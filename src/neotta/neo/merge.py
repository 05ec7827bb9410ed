"""Merging what several machines, devices or nights have learnt into one state, exactly."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from neotta.errors import InputError, OptionError, StateMismatchError
from neotta.neo.state import state_of
from neotta.neo.statefile import State, read_state
from neotta.neo.stream_ids import StreamId, pack, unpack
from neotta.neo.stream_store import COUNTS


def merge(states: Iterable[str | os.PathLike[str] | State | nn.Module]) -> State:
    """Merge states of one model, as if all their samples had come to one machine.

    The order does not matter, and merged states can be merged again. Streams of the same id become one stream. Samples
    that stand behind several of the states count as often: merge what was gathered apart.

    ```python
    neotta.merge(["monday.safetensors", "tuesday.safetensors"]).save("week.safetensors")
    neotta.load(model, neotta.merge(paths))
    ```

    Args:
        states: Files written by `neotta.save`, adapted models, or merged states.

    Returns:
        A state to `save(path)` or to give to `neotta.load`.

    Raises:
        StateMismatchError: They belong to different models or methods.
        OptionError: They hold moving averages, which depend on the order of the batches.
        StateFileError: A file is missing or damaged.
    """
    read = [_read(state) for state in states]
    if not read:
        raise InputError("there is nothing to merge: give at least one state")
    (first, about), source = read[0]
    for state, name in read[1:]:
        _check(about, state.about, source, name)
    options = about["options"]
    if "alpha" in options or options.get("statistics") == "ema":
        raise OptionError(
            f"a moving average ({about['method']}) cannot be merged: it depends on the order of its batches"
        )
    by = "batches" if options.get("weighting") == "batch" else "count"
    variance = options.get("shrinkage") is not None
    merged: dict[str, Tensor] = {}
    for head in about["heads"]:
        parts = [_table(state.tensors, head, bool(about.get("streams"))) for state, _ in read]
        ids, tensors = _merged(parts, by, variance)
        if about.get("streams"):
            merged[f"{head}.ids"] = pack(ids)
        for key, tensor in tensors.items():
            kind = first[f"{head}.{key}"].dtype
            merged[f"{head}.{key}"] = (tensor if about.get("streams") else tensor[0]).to(kind)
    return State(merged, about)


def _read(state: str | os.PathLike[str] | State | nn.Module) -> tuple[State, str]:
    """A state, and what to call it in a message."""
    if isinstance(state, State):
        return state, "a merged state"
    if isinstance(state, nn.Module):
        return state_of(state), f"the state of a {type(state).__name__}"
    if not isinstance(state, str | os.PathLike):
        raise InputError(f"a state to merge is a file, an adapted model or a merged state, got {type(state).__name__}")
    found = read_state(state)
    if found.about.get("kind") != "model":
        raise StateMismatchError(f"{os.fspath(state)!r} holds the state of an adapter: only those of models are merged")
    return found, repr(os.fspath(state))


def _check(mine: dict[str, Any], theirs: dict[str, Any], one: str, other: str) -> None:
    for key, what in {
        "heads": "other head weights",
        "method": "another method",
        "options": "other options",
        "streams": "one centroid per stream, or without",
    }.items():
        if (mine.get(key) or None) != (theirs.get(key) or None):
            raise StateMismatchError(f"{other} cannot be merged with {one}: it was made with {what}")


def _table(tensors: dict[str, Tensor], head: str, many: bool) -> tuple[list[StreamId], dict[str, Tensor]]:
    """The streams of one head, (S, ...) each; a single centroid is a single stream."""
    keys = (*COUNTS, "mean", "scatter")
    rows = {key: tensors[f"{head}.{key}"] if many else tensors[f"{head}.{key}"][None] for key in keys}
    ids: list[StreamId] = unpack(tensors[f"{head}.ids"]) if many else [0]
    return ids, {key: tensor.cpu() for key, tensor in rows.items()}


def _merged(
    parts: list[tuple[list[StreamId], dict[str, Tensor]]], by: str, variance: bool
) -> tuple[list[StreamId], dict[str, Tensor]]:
    """Add up tables by stream: n = Σ nᵢ, mean = Σ nᵢ mᵢ / n, scatter = Σ sᵢ + Σ nᵢ |mᵢ - mean|²."""
    every = [item for ids, _ in parts for item in ids]
    places: dict[StreamId, int] = {}
    segments = torch.tensor([places.setdefault(item, len(places)) for item in every], dtype=torch.int64)
    rows = {key: torch.cat([tensors[key] for _, tensors in parts]) for key in parts[0][1]}

    def total(values: Tensor) -> Tensor:
        zeros = torch.zeros(len(places), *values.shape[1:], dtype=values.dtype)
        return zeros.index_add_(0, segments, values)

    weight, means = rows[by].double(), rows["mean"].double()
    mean = total(means * weight[:, None]) / total(weight).clamp(min=1)[:, None]
    scatter = rows["scatter"].double()
    if variance:
        scatter = scatter + (means - mean[segments]).square().sum(1) * weight
    return list(places), {**{key: total(rows[key]) for key in COUNTS}, "mean": mean, "scatter": total(scatter)}

"""Merge adaptation states exactly: those of files and models, and those of replicas that run at the same time."""

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
from neotta.neo.statefile import State, fingerprint, part_of, read_state
from neotta.neo.stream_ids import StreamId
from neotta.neo.surgery import adaptation, heads
from neotta.neo.variants import rule_of


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
    shared = rule_of(about["method"], about["options"])
    if not shared.mergeable:
        raise OptionError(
            f"a moving average ({about['method']}) cannot be merged: it depends on the order of its batches"
        )
    many, known = bool(about.get("streams")), reference_in(first, about, source)
    merged = {name: tensor for name, tensor in first.items() if name.startswith(PREFIX)}
    for head in about["heads"]:
        rule = shared.knowing(None if known is None else known.heads[head].clean)
        layout = rule.layout(_size(first, head, rule, source))
        parts = []
        for (tensors, _), name in read:
            try:
                parts.append(states_in(layout, rule, part_of(tensors, f"{head}."), many))
            except StateMismatchError as error:
                raise StateMismatchError(f"{name} cannot be merged: {error}") from error
        table = entries(layout, *merge_tables(parts, layout, rule, many), many=many)
        merged.update({f"{head}.{key}": value for key, value in table.items()})
    return State(merged, about)


@torch.no_grad()
def sync(model: nn.Module, *, group: Any = None) -> None:
    """Synchronise the replicas of an adapted model: call this in all processes of a group at the same time.

    Afterwards every replica has the state of a model that saw the samples of all: what each has learnt since the last
    call (or since the state was loaded) is added once. With NEO-Stream, the moments over all time are shared; the
    window, the labels and the last sample stay those of the replica's own stream.

    This is a collective operation of torch.distributed: it waits until every process calls it.

    Args:
        model: The adapted model, with the same start in all processes: freshly adapted, reset, or loaded from one file.
        group: A process group of torch.distributed; all processes by default.

    Raises:
        OptionError: The method or its options cannot be synchronised, or there is no process group.
        StateMismatchError: The replicas have different models or starting states.
    """
    import torch.distributed as dist

    method, rule = adaptation(model)[:2]
    streams = {name: neo.streams for name, neo in heads(model).items()}
    if any(each.many for each in streams.values()):
        raise OptionError("models with many streams cannot be synchronised: merge their saved states with neotta.merge")
    if not rule.mergeable:
        raise OptionError(f"a moving average ({method}) cannot be synchronised: it depends on the order of its batches")
    if not dist.is_available() or not dist.is_initialized():
        raise OptionError("there is no process group: call torch.distributed.init_process_group first")
    weights = [fingerprint(dict(neo.named_parameters())) for neo in heads(model).values()]
    sums = {name: each.layout.sums(each.table.device) for name, each in streams.items()}
    starts = {name: each.baseline * sums[name] for name, each in streams.items()}
    replicas: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(replicas, (f"{adaptation(model)} {weights}", fingerprint(starts)), group=group)
    for what, *theirs in zip(("models or methods", "starting states"), *replicas, strict=True):
        if any(other != theirs[0] for other in theirs):
            raise StateMismatchError(f"the replicas have different {what}: adapt, load or reset them alike")
    for name, each in streams.items():
        with each.guard():
            learnt = (each.table - each.baseline) * sums[name]
            dist.all_reduce(learnt, group=group)
            # What cannot be shared stays this replica's own.
            own = torch.where(sums[name], each.baseline, each.table)
            each.put(each.rule.merged(own, learnt, each.layout))


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

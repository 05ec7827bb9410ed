"""Merge adaptation states exactly: those of files and models, and those of replicas that run at the same time."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch import nn

from neotta.errors import InputError, OptionError, StateMismatchError
from neotta.neo.codec import HeadStates, StateFile
from neotta.neo.files import check_offsets, opened, state_of
from neotta.neo.state import Rule
from neotta.neo.statefile import fingerprint
from neotta.neo.stream_ids import StreamId
from neotta.neo.surgery import adaptation, heads
from neotta.neo.variants import rule_of


def merge(states: Iterable[str | os.PathLike[str] | StateFile | nn.Module]) -> StateFile:
    """Merge states of one model exactly, as if one model had seen all their samples.

    The order does not matter, and merged states can be merged again. Streams with the same id are merged. A sample
    contained in several states is counted several times.

    ```python
    neotta.merge(["monday.safetensors", "tuesday.safetensors"]).save("week.safetensors")
    neotta.load(model, neotta.merge(paths))
    ```

    Args:
        states: Files of states, whatever wrote them, adapted models, or merged states.

    Returns:
        A state with a method `save(path)`, accepted by `neotta.load`.

    Raises:
        StateMismatchError: They belong to different models or methods.
        OptionError: They are moving averages, which depend on the order of the batches.
        StateFileError: A file is missing or damaged.
        StateError: A state holds values that make no sense, such as NaN or a negative count.
    """
    if isinstance(states, (str, os.PathLike, StateFile, nn.Module)):
        raise InputError(f"expected a list of states to merge, got a single {type(states).__name__}")
    read = [_read(state) for state in states]
    if not read:
        raise InputError("nothing to merge: pass at least one state")
    first, source = read[0]
    try:
        shared = rule_of(first.method, first.options)
        known = {} if first.reference is None else first.reference.heads
        only = next(iter(known.values())) if len(known) == 1 else None  # whatever it is called
        rules = {name: shared.knowing(known.get(name, only)) for name in first.heads}
        wanted = {
            name: replace(head, fields=rules[name].layout(head.size).fields) for name, head in first.heads.items()
        }
    except (OptionError, KeyError) as error:
        raise StateMismatchError(f"{source} cannot be merged: {error}") from error
    if not shared.mergeable:
        raise OptionError(f"a moving average ({first.method}) cannot be merged: it depends on the order of its batches")
    mine = replace(first, heads=wanted)
    fitted = [file.fitted(mine, name) for file, name in read]
    for (_, name), each in zip(read, fitted, strict=True):
        for head, part in each.items():
            check_offsets(rules[head], torch.from_numpy(part.table), name)
    merged = {name: _merged([each[name] for each in fitted], rule, first.many) for name, rule in rules.items()}
    return replace(first, heads=merged)


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
        with each.lock:
            learnt = (each.table - each.baseline) * sums[name]
            dist.all_reduce(learnt, group=group)
            # What cannot be shared stays this replica's own.
            own = torch.where(sums[name], each.baseline, each.table)
            each.put(each.rule.merged(own, learnt, each.layout))


def _read(state: str | os.PathLike[str] | StateFile | nn.Module) -> tuple[StateFile, str]:
    if isinstance(state, nn.Module):
        return state_of(state), f"the state of a {type(state).__name__}"
    return opened(state)


def _merged(parts: list[HeadStates], rule: Rule, many: bool) -> HeadStates:
    """States of one head merged by stream; one without streams is that of stream 0."""
    layout = rule.layout(parts[0].size)
    ids: list[list[StreamId]] = [[0] if each.ids is None else each.ids for each in parts]
    places = {item: place for place, item in enumerate(dict.fromkeys(chain.from_iterable(ids)))}
    total = layout.blank(len(places))
    for each, mine in zip(parts, ids, strict=True):
        rows = torch.tensor([places[item] for item in mine], dtype=torch.int64)
        total[rows] = rule.merged(total[rows], torch.from_numpy(each.table), layout)
    return replace(parts[0], ids=list(places) if many else None, table=total.numpy())

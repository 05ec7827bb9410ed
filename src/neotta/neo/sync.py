"""`neotta.sync`: give all replicas of a model the state that saw everything."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from neotta.errors import OptionError, StateMismatchError
from neotta.neo.statefile import fingerprint
from neotta.neo.surgery import adaptation, heads
from neotta.neo.variants import mergeable


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

    method, options = adaptation(model)[:2]
    streams = {name: neo.streams for name, neo in heads(model).items()}
    if any(each.many for each in streams.values()):
        raise OptionError("models with many streams cannot be synchronised: merge their saved states with neotta.merge")
    if not mergeable(options):
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

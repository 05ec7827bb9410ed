"""Replicas of one model that share what they learn, for as long as they run."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from neotta.errors import OptionError
from neotta.neo.sync.board import Board, membership
from neotta.neo.sync.synchronizer import Synchronizer

# The synchronizer of each model, and how it was asked for.
_SYNCED: WeakKeyDictionary[nn.Module, tuple[Synchronizer, tuple[object, ...]]] = WeakKeyDictionary()


def sync(
    model: nn.Module,
    *,
    every: int | None = 100,
    timeout: float = 30.0,
    group: Any = None,
    store: Any = None,
    rank: int | None = None,
    world_size: int | None = None,
    name: str = "neotta",
) -> Synchronizer:
    """Keep replicas of an adapted model equal: all processes of a group call this, then use their model as always.

    Called again in the same way, it returns the synchronizer that is there.

    Args:
        model: The adapted model, with the same state in all processes (freshly adapted, or loaded from one file).
        every: Exchange after so many batches; with None, only when `now()` is called.
        timeout: For how many seconds a replica is waited for. One that has published nothing new for so long is left
            out of the waiting until it does. Choose more than `every` batches take on the slowest machine.
        group: A group of torch.distributed; all processes by default.
        store: A store of torch.distributed (`TCPStore`) to exchange through, in the place of that of the group. With
            `rank` and `world_size`, no group is needed.
        rank: Which replica this is, if there is no group.
        world_size: How many replicas there are, if there is no group.
        name: Tells several exchanges in one store apart.

    Raises:
        OptionError: The method or its options cannot be synchronized, or there is neither group nor store.
        StateMismatchError: The replicas are of different models, or started from different states.
    """
    settings = (every, timeout, group, store, rank, world_size, name)
    present, before = _SYNCED.get(model, (None, settings))
    if present is None or present.closed:
        store, rank, members = membership(group, store, rank, world_size)
        present = Synchronizer(model, Board(store, name, rank, members, timeout), every)
        _SYNCED[model] = present, settings
    elif before != settings:
        raise OptionError("the model is synchronized already, with other settings: close() that first")
    return present

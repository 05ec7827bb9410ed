"""Synchronisation of replicas while they run."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from neotta.errors import OptionError
from neotta.neo.sync.board import Board, membership
from neotta.neo.sync.synchronizer import Synchronizer

# The synchronizer of each model, and its settings.
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
    """Synchronise replicas of an adapted model: call this in all processes of a group, then use the model as usual.

    A second call with the same settings returns the existing synchronizer.

    Args:
        model: The adapted model, with the same state in all processes (freshly adapted, or loaded from one file).
        every: Number of batches between exchanges; None to exchange only when `now()` is called.
        timeout: Seconds to wait for a replica. One that publishes nothing for that long is not waited for until it
            publishes again. Choose more than `every` batches take on the slowest machine.
        group: A process group of torch.distributed; all processes by default.
        store: A store of torch.distributed (`TCPStore`) to use instead of the group's. With `rank` and `world_size`, no
            group is needed.
        rank: Rank of this replica, if there is no group.
        world_size: Number of replicas, if there is no group.
        name: Prefix of the keys, to separate several exchanges in one store.

    Raises:
        OptionError: The method or its options cannot be synchronised, or there is neither group nor store.
        StateMismatchError: The replicas have different models or starting states.
    """
    settings = (every, timeout, group, store, rank, world_size, name)
    present, before = _SYNCED.get(model, (None, settings))
    if present is None or present.closed:
        store, rank, members = membership(group, store, rank, world_size)
        present = Synchronizer(model, Board(store, name, rank, members, timeout), every)
        _SYNCED[model] = present, settings
    elif before != settings:
        raise OptionError("the model is synchronised already, with other settings: close() its synchronizer first")
    return present

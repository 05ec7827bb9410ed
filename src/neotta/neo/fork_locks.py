"""Locks that survive a fork: a child must not wait for a thread that exists only in its parent."""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager
from typing import Any
from weakref import WeakSet

_PATIENCE = 10.0  # seconds to wait, before a fork, for a thread that is in the middle of an update

_owners: WeakSet[Any] = WeakSet()
_awaited: WeakSet[Any] = WeakSet()
_registering = threading.Lock()
_held: list[Any] = []


def register(owner: Any, *, wait: bool = True) -> AbstractContextManager[Any]:
    """Return a lock for an object to keep as `owner._lock`; there it is made new in every forked child.

    Args:
        owner: The object.
        wait: Let a fork wait until nobody holds the lock, so that the child gets no half-made update. A thread that
            holds such a lock must not wait for another one, unless the first one's owner is `outermost`.
    """
    owner._lock = threading.RLock()
    with _registering:
        _owners.add(owner)
        if wait:
            _awaited.add(owner)
    lock: AbstractContextManager[Any] = owner._lock
    return lock


def _before_fork() -> None:
    with _registering:
        owners = sorted(_awaited, key=lambda owner: not getattr(owner, "outermost", False))
    for owner in owners:
        if owner._lock.acquire(timeout=_PATIENCE):
            _held.append(owner._lock)


def _in_parent() -> None:
    while _held:
        _held.pop().release()


def _in_child() -> None:
    global _registering
    _registering = threading.Lock()
    _held.clear()
    for owner in list(_owners):
        owner._lock = threading.RLock()


if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
    os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)

"""A fork waits for imports under way: its child would wait for a thread that exists only in its parent."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys


def _before_fork() -> None:
    """Wait until no other thread is in the middle of an import, such as that of torch's compiler on the first call."""
    for name, module in list(sys.modules.items()):
        if getattr(getattr(module, "__spec__", None), "_initializing", False):
            with contextlib.suppress(Exception):  # the thread that imports it gets the error
                importlib.import_module(name)  # returns at once if it is this thread that imports it


def register() -> None:
    """Let every fork of this process wait."""
    if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
        os.register_at_fork(before=_before_fork)

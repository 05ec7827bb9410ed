"""Worker processes: they leave Ctrl-C to the process that started them, and end when it does."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


def usable_cores() -> int:
    """Number of cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on every system
    return len(affinity(0)) if affinity else os.cpu_count() or 1


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Hold back Ctrl-C in this block, and for good in the processes that it starts, where the system can."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Terminated(KeyboardInterrupt):
    """Somebody asked this process to end, with SIGTERM."""


@contextmanager
def terminations_raised() -> Iterator[None]:
    """Let SIGTERM raise `Terminated` in this block of the main thread, so that what is open is closed."""

    def stop(*_: object) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def begin_worker() -> None:
    """Leave Ctrl-C to the process that started this one, and end when that ends, even by a kill."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)

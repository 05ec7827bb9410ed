"""Worker processes: they ignore Ctrl-C and exit with the process that started them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


def usable_cores() -> int:
    """Number of cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on every system
    return len(affinity(0)) if affinity else os.cpu_count() or 1


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Block Ctrl-C in this block, and permanently in the processes it starts, if the system supports it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Terminated(KeyboardInterrupt):
    """This process received SIGTERM."""


def interrupt_code(interrupt: BaseException) -> int:
    """The exit code after Ctrl-C, or after SIGTERM."""
    return 143 if isinstance(interrupt, Terminated) else 130


@contextmanager
def terminations_raised() -> Iterator[threading.Event]:
    """Raise `Terminated` on SIGTERM in this block, so that files are closed and temporary folders removed.

    Only in the main thread, which gets the signals; in others nothing changes. The event is set when a SIGTERM comes:
    who catches `Terminated` on its way may take it for Ctrl-C.
    """
    received = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def stop(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one would stop the cleaning up
        received.set()
        raise Terminated

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield received
    finally:
        signal.signal(signal.SIGTERM, before)


def begin_worker() -> None:
    """Ignore Ctrl-C, and exit when the parent process exits, even if it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)

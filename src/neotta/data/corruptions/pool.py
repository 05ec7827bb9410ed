"""One function on many items in several processes, with a clean end on Ctrl-C."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import TypeVar

from neotta._processes import begin_worker, interrupts_held
from neotta.errors import DataError

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_order(
    function: Callable[[Item], Result], items: Sequence[Item], workers: int, chunk: int = 1
) -> Generator[Result, None, None]:
    """The results of a picklable function, in the order of the items.

    Closing the generator lets the workers finish the items they are at and drops the others.

    Args:
        function: What is done with each item.
        items: What it is done with.
        workers: Processes; 1 means this one.
        chunk: Items that travel together.

    Raises:
        DataError: A worker was killed.
    """
    workers = min(workers, len(items))
    if workers <= 1:
        yield from map(function, items)
        return
    # Fresh processes: a fork of a process that has threads may hang.
    pool = ProcessPoolExecutor(workers, get_context("spawn"), initializer=begin_worker)
    try:
        with interrupts_held():  # the workers start here, and would die noisily of a Ctrl-C while they do
            results = pool.map(function, items, chunksize=chunk)
        yield from results
    except BrokenProcessPool as error:
        raise DataError(
            "a worker process died (out of memory?): run again with fewer workers; what is written is kept"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)

"""Where a shorter run stopped, for a longer one to continue.

A run with more samples of an order begins exactly as the run with fewer did. So a sweep over the number of samples
costs no more than its longest run.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from neotta.adapters.registry import AnyAdapter
from neotta.data.order import Order
from neotta.evaluate.predictions import RunResult


@dataclass
class Checkpoint:
    """A run's adapter and result after the last full batch, which a longer run contains, too.

    Attributes:
        key: What the run has in common with a longer one.
        order: The order it adapted to.
        stop: Number of entries of the order that were seen.
        result: What came of them.
        adapter: The adapter.
        state: Its state at that point; None if it is still there.
        not_adapted: Number of samples that it had not adapted to.
    """

    key: str
    order: Order
    stop: int
    result: RunResult
    adapter: AnyAdapter
    state: dict[str, Tensor] | None
    not_adapted: int

    @classmethod
    def take(cls, key: str, order: Order, stop: int, result: RunResult, adapter: AnyAdapter) -> Checkpoint:
        """Save the state of a run before its ragged last batch, or at its end."""
        state = adapter.state_dict() if stop < len(order) else None
        return cls(key, order, stop, result.copy(), adapter, state, adapter.skipped)

    def is_prefix_of(self, key: str, order: Order) -> bool:
        """Whether a run begins with the batches that were seen."""
        stop = self.stop
        return (
            self.key == key
            and stop <= len(order)
            and self.order.domains == order.domains
            and np.array_equal(self.order.index[:stop], order.index[:stop])
            and np.array_equal(self.order.domain[:stop], order.domain[:stop])
            and (stop == len(order) or any(batch.start == stop for batch in order.batches()))
        )

    def resume(self) -> tuple[AnyAdapter, RunResult]:
        """The adapter as it was, and what came of the entries before."""
        if self.state is not None:
            self.adapter.load_state_dict(self.state)
        self.adapter.skipped = self.not_adapted
        return self.adapter, self.result.copy()


def full_batches(order: Order) -> int:
    """Number of entries of an order before a ragged last batch."""
    batches = order.batches()
    if not batches or batches[-1].stop - batches[-1].start == order.batch_size:
        return len(order)
    return int(batches[-1].start)

"""Going on where a shorter run stopped.

A run that adapts to more samples of a stream begins exactly as the run with fewer did. So a sweep over the number of
samples need not start over each time: it costs as much as its longest run.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from neotta.adapters.registry import AnyAdapter
from neotta.data.order import Order
from neotta.evaluate.outputs import Part


@dataclass
class Trail:
    """A run's adapter and results at the last point that a longer run passes too: a border between full batches.

    Attributes:
        key: What the run and a longer one have in common.
        stream: What it adapted to.
        stop: How many entries of the stream lie behind.
        part: What came of them.
        adapter: The adapter.
        state: Its state there; None if it is still there itself.
        not_adapted: Its count of samples that it did not adapt to.
    """

    key: str
    stream: Order
    stop: int
    part: Part
    adapter: AnyAdapter
    state: dict[str, Tensor] | None
    not_adapted: int

    @classmethod
    def at(cls, key: str, stream: Order, stop: int, part: Part, adapter: AnyAdapter) -> Trail:
        """Note where a run stands, before it goes on to a last batch that is not full, or after its end."""
        state = adapter.state_dict() if stop < len(stream) else None
        return cls(key, stream, stop, part.copy(), adapter, state, adapter.skipped)

    def leads_to(self, key: str, stream: Order) -> bool:
        """Whether the stream of a run begins with the batches that lie behind."""
        stop = self.stop
        return (
            self.key == key
            and stop <= len(stream)
            and self.stream.domains == stream.domains
            and np.array_equal(self.stream.index[:stop], stream.index[:stop])
            and np.array_equal(self.stream.domain[:stop], stream.domain[:stop])
            and (stop == len(stream) or any(batch.start == stop for batch in stream.batches()))
        )

    def take_up(self) -> tuple[AnyAdapter, Part]:
        """The adapter as it was there, and what came of the entries before."""
        if self.state is not None:
            self.adapter.load_state_dict(self.state)
        self.adapter.skipped = self.not_adapted
        return self.adapter, self.part.copy()


def full_batches(stream: Order) -> int:
    """How many entries of a stream come before a last batch that is not full."""
    batches = stream.batches()
    if not batches or batches[-1].stop - batches[-1].start == stream.batch_size:
        return len(stream)
    return int(batches[-1].start)

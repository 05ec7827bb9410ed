"""Re-center logits in NumPy with any rule, one state for each stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from neotta.deploy._stream_states import State, StreamStates, checked_state
from neotta.neo import moments
from neotta.neo.groups import grouped
from neotta.neo.moments import Groups, Moments
from neotta.neo.rules import MeanRule, Rule
from neotta.neo.statefile import Array
from neotta.neo.stream_ids import StreamId

_LARGEST = moments.limit(np.dtype(np.float32))  # whatever the dtype of the logits: the next ones may be narrower


@dataclass(frozen=True)
class LogitMeanRule(MeanRule):
    """A rule on means that acts on logits: W c is the mean of the bias-free logits.

    Attributes:
        inverse: W⁺, (d, C), if squared lengths are those of embeddings; otherwise they are those of logits.
    """

    space = "logits"  # type: ignore[assignment]

    inverse: Array | None = field(default=None, compare=False)

    def take(
        self, state: Any, rows: Any, groups: Groups, *, finite: Any, bias: Any, adapt: bool, weights: Any = None
    ) -> tuple[Any, Any]:
        """Add a batch of logits, and return the mean of each row's stream."""
        if adapt:
            free = np.where(finite[:, None], rows, 0.0) - bias
            new = moments.summarise(
                free, groups, finite=finite, variance=self.variance, squares=self._squares, weights=weights
            )
            moments.combine(state, new, self.share(state, new), self._squares)
        return state, groups.spread(self.centre(state))

    def merge(self, old: Moments, new: Moments, squares: Any = None) -> None:
        """Add the samples of `new` to `old`, in place and exactly."""
        super().merge(old, new, squares or self._squares)

    def centre(self, state: Moments, squares: Any = None) -> Any:
        """Return the vector to subtract from the logits, (..., C)."""
        return super().centre(state, squares or self._squares)

    def _squares(self, free: Array) -> Any:
        """Squared lengths of bias-free logits (..., C), or of their embeddings (..., d)."""
        return moments.squares(free if self.inverse is None else free @ self.inverse.T)


class LogitMemory:
    """The moments of logits, one set per stream.

    Args:
        rule: A rule on logits.
        bias: Bias of the head, (C,).
    """

    def __init__(self, rule: Rule, bias: Array) -> None:
        self.rule = rule
        self.bias = bias
        self.fields = rule.fields(len(bias))
        self.states = StreamStates(self.blank())

    def blank(self) -> State:
        """The state of a stream that was never seen."""
        return {
            name: np.full(field.shape, field.start, np.int64 if field.kind == "count" else np.float64)
            for name, field in self.fields.items()
        }

    def step(
        self, logits: Array, ids: Sequence[StreamId | None], *, adapt: bool, weights: Array | None = None
    ) -> tuple[Array, int]:
        """Add a batch, unless `adapt=False`.

        Args:
            logits: (B, C), at least one row.
            ids: The stream of each row.
            adapt: Whether to add it; if not, nothing changes.
            weights: How much each row counts, (B,); None for 1 each.

        Returns:
            What to subtract from each row, (B, C) or (1, C) float64, and the number of rows that were excluded because
            of NaN or Inf.
        """
        rows = logits.astype(np.float64)
        distinct, groups = grouped(ids)
        state = self._stacked(distinct)
        before = state.rejected.sum()
        finite = moments.usable(rows, _LARGEST)
        given = {} if weights is None else {"weights": weights}
        after, subtract = self.rule.take(state, rows, groups, finite=finite, bias=self.bias, adapt=adapt, **given)
        if not adapt:
            return subtract, 0
        rejected = int(after.rejected.sum() - before)
        if weights is not None:  # a stream without any weight is not one that was seen
            distinct = [
                stream for stream in distinct if any(weights[row] > 0 for row, i in enumerate(ids) if i == stream)
            ]
        columns = after._asdict()
        places = {stream: place for place, stream in enumerate(dict.fromkeys(ids))}
        self.states.put({s: {name: column[places[s]] for name, column in columns.items()} for s in distinct})
        return subtract, rejected

    def centre(self, stream: StreamId | None = None) -> Array:
        """The vector that is subtracted from the logits of a stream, (C,)."""
        return np.array(self.rule.centre(self._stacked([stream]))[0])

    def count(self) -> int:
        """Number of samples seen, in all streams."""
        return self.total("count")

    def total(self, name: str) -> int:
        """Sum of a count over all streams."""
        ids: list[StreamId | None] = [*self.states.ids, None]
        return sum(int(self.states.get(stream)[name]) for stream in ids)

    def merge(self, stream: StreamId | None, other: Mapping[str, Array]) -> None:
        """Add the samples of another state to those of a stream."""
        mine = self._stacked([stream])
        self.rule.merge(mine, self.rule.State(*(np.asarray(other[name])[None] for name in mine._fields)))
        self.states.put({stream: {name: column[0] for name, column in mine._asdict().items()}})

    def check(self, arrays: Mapping[str, Array], many: bool = False) -> State:
        """Validate a saved state, of one stream or a table of many, and complete it.

        Raises:
            StateMismatchError: It belongs to another model or rule.
            StateError: It contains invalid values, such as NaN or a negative count.
        """
        return checked_state(self.fields, arrays, self.states.start, many)

    def _stacked(self, ids: Sequence[StreamId | None]) -> Any:
        """A copy of the states of some streams, (K, ...) for each entry."""
        states = [self.states.get(stream) for stream in ids]
        return self.rule.State(*(np.stack([state[name] for state in states]) for name in self.fields))

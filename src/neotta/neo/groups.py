"""Which stream each row of a batch belongs to, for NumPy arrays and torch tensors alike.

Rows are in order of arrival. `total` sums over the rows of each stream, `spread` gives each row its stream's value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from neotta.neo.moments import namespace


class _InTurns:
    """Goes through the rows of each stream in order, all streams side by side."""

    def turns(self, like: Any) -> list[tuple[Any, Any]]:
        """The first row of each stream, then the second of each, and so on: (rows, streams), to index `like`."""
        raise NotImplementedError

    def sequence(self, turn: Callable[..., Any], state: Any, rows: Any, weights: Any) -> tuple[Any, Any, Any]:
        """Update a state row by row.

        Args:
            turn: Maps the state of some streams, one row of each and its weight to their new state, a new row and a
                number.
            state: Named tuple of arrays, (K, ...).
            rows: (N, C).
            weights: (N,).

        Returns:
            The state afterwards, the new rows (N, C) and the numbers (N,).
        """
        xp = namespace(rows)
        state = type(state)(*(column * 1.0 for column in state))
        vectors, numbers = xp.empty_like(rows), xp.empty_like(weights)
        for places, streams in self.turns(weights):
            mine = type(state)(*(column[streams] for column in state))
            after, vectors[places], numbers[places] = turn(mine, rows[places], weights[places])
            for column, values in zip(state, after, strict=True):
                column[streams] = values
        return state, vectors, numbers


class SoleStream(_InTurns):
    """All rows belong to one stream, whose state has a leading dimension of 1."""

    alone = False

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def total(self, values: Any) -> Any:
        """Sum over all rows, (N, ...) to (1, ...)."""
        return values.sum(0)[None]

    def weighted(self, weights: Any, rows: Any) -> Any:
        """Weighted sum over all rows, (N, C) to (1, C)."""
        return (weights @ rows)[None]

    def spread(self, values: Any) -> Any:
        """The same value for all rows, (1, ...) to (N, ...)."""
        return namespace(values).broadcast_to(values, (self._rows, *values.shape[1:]))

    def before(self, rows: Any, counts: Any, stored: Any) -> Any:
        """The row before each row among those that count, (N, C), or else the stored one, (1, C)."""
        xp = namespace(rows)
        if xp is np and counts.all():  # as usual: one copy
            return np.concatenate([stored, rows[:-1]])
        latest = _latest(counts)
        place = xp.concatenate([latest[:1] * 0 - 1, latest[:-1]])
        return xp.where((place < 0)[:, None], stored, rows[place.clip(min=0)])

    def last(self, rows: Any, counts: Any, stored: Any) -> Any:
        """The last row that counts, (1, C), or else the stored one."""
        place = _latest(counts)[-1:]
        return namespace(rows).where((place < 0)[:, None], stored, rows[place.clip(min=0)])

    def turns(self, like: Any) -> list[tuple[Any, Any]]:
        """Row by row: (rows, streams)."""
        return [(slice(row, row + 1), slice(0, 1)) for row in range(self._rows)]


def _latest(counts: Any) -> Any:
    """Index of the last row that counts up to each row, (N,); -1 before the first."""
    xp = namespace(counts)
    numbers = xp.cumsum(xp.ones_like(counts, dtype=xp.int64), 0) - 1
    marked = xp.where(counts, numbers, -1)
    return np.maximum.accumulate(marked) if xp is np else marked.cummax(0).values


class EachItsOwn(_InTurns):
    """Every row belongs to a different stream."""

    alone = True

    def total(self, values: Any) -> Any:
        """Nothing to sum."""
        return values

    def weighted(self, weights: Any, rows: Any) -> Any:
        """Nothing to sum, (N, C)."""
        return weights[:, None] * rows

    def spread(self, values: Any) -> Any:
        """Nothing to repeat."""
        return values

    def before(self, rows: Any, counts: Any, stored: Any) -> Any:
        """The stored rows, (N, C)."""
        return stored

    def last(self, rows: Any, counts: Any, stored: Any) -> Any:
        """The rows that count, and for the others the stored ones, (N, C)."""
        return namespace(rows).where(counts[:, None], rows, stored)

    def turns(self, like: Any) -> list[tuple[Any, Any]]:
        """All rows at once."""
        return [(slice(None), slice(None))]


class ManyStreams(_InTurns):
    """Rows belong to several streams.

    Args:
        streams: Index of each row's stream, from 0 to `count` - 1.
        count: Number of streams.
    """

    alone = False

    def __init__(self, streams: Sequence[int] | np.ndarray[Any, Any], count: int) -> None:
        self._streams = np.asarray(streams, np.int64)
        self._count = count

    def total(self, values: Any) -> Any:
        """Sum over the rows of each stream, (N, ...) to (K, ...)."""
        if isinstance(values, np.ndarray):
            sums = np.zeros((self._count, *values.shape[1:]), values.dtype)
            np.add.at(sums, self._streams, values)
            return sums
        return values.new_zeros(self._count, *values.shape[1:]).index_add_(0, _index(self._streams, values), values)

    def weighted(self, weights: Any, rows: Any) -> Any:
        """Weighted sum over the rows of each stream, (N, C) to (K, C)."""
        return self.total(weights[:, None] * rows)

    def spread(self, values: Any) -> Any:
        """Give each row the value of its stream, (K, ...) to (N, ...)."""
        return values[_index(self._streams, values)]

    def before(self, rows: Any, counts: Any, stored: Any) -> Any:
        """The row before each row in its stream among those that count, (N, C), or else the stored one, (K, C)."""
        latest: dict[int, int] = {}
        places = []
        for row, (stream, counted) in enumerate(zip(self._streams.tolist(), counts.tolist(), strict=True)):
            places.append(latest.get(stream, -1))
            if counted:
                latest[stream] = row
        return self._chosen(np.array(places), rows, self.spread(stored))

    def last(self, rows: Any, counts: Any, stored: Any) -> Any:
        """The last row of each stream that counts, (K, C), or else the stored one."""
        places = np.full(self._count, -1)
        for row, (stream, counted) in enumerate(zip(self._streams.tolist(), counts.tolist(), strict=True)):
            places[stream] = row if counted else places[stream]
        return self._chosen(places, rows, stored)

    def turns(self, like: Any) -> list[tuple[Any, Any]]:
        """The first row of each stream, then the second of each, and so on: (rows, streams), to index `like`."""
        turns: list[list[int]] = []
        seen = [0] * self._count
        for row, stream in enumerate(self._streams.tolist()):
            if seen[stream] == len(turns):
                turns.append([])
            turns[seen[stream]].append(row)
            seen[stream] += 1
        return [(_index(rows, like), _index(self._streams[rows], like)) for rows in map(np.array, turns)]

    def _chosen(self, places: Any, rows: Any, stored: Any) -> Any:
        """Rows by index, or what is stored where the index is -1."""
        index = _index(places, rows)
        return namespace(rows).where((index < 0)[:, None], stored, rows[index.clip(min=0)])


def _index(numbers: Any, like: Any) -> Any:
    """Convert integers to an index for arrays like `like`."""
    xp = namespace(like)
    return numbers if xp is np else xp.from_numpy(numbers).to(like.device)


def grouped(ids: Sequence[Any], repeat: int = 1) -> tuple[Sequence[Any], Any]:
    """Return the distinct ids of a batch, and the grouping of its rows (`repeat` consecutive rows per id)."""
    places = {item: place for place, item in enumerate(dict.fromkeys(ids))}
    if len(places) == 1:
        return ids[:1], SoleStream(len(ids) * repeat)
    if len(places) == len(ids) and repeat == 1:
        return ids, EachItsOwn()
    return list(places), ManyStreams(np.repeat([places[item] for item in ids], repeat), len(places))

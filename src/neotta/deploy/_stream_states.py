"""The states of streams, as NumPy arrays by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from neotta.errors import InputError, StateError, StateMismatchError
from neotta.neo.rules import Field
from neotta.neo.state_checks import check_fields, check_ids, check_subtracted, completed
from neotta.neo.statefile import Array
from neotta.neo.stream_ids import StreamId, checked, one, pack_array, unpack_array

State = dict[str, Array]
IDS = "ids"


class StreamStates:
    """The state of each stream; None is the stream of calls that name none.

    A state is never changed in place: `put` replaces it.

    Args:
        start: The state that a new stream begins with.
    """

    def __init__(self, start: Mapping[str, Array]) -> None:
        self.start = dict(start)
        self._states: dict[StreamId | None, State] = {}

    def get(self, stream: StreamId | None) -> State:
        """The state of a stream; a new one has that of the start."""
        return self._states.get(stream, self.start)

    def put(self, states: Mapping[StreamId | None, State]) -> None:
        """Replace the states of some streams, all at once."""
        self._states = {**self._states, **states}

    def known(self, stream: StreamId | None) -> State:
        """The state of a stream that was seen.

        Raises:
            InputError: It was never seen.
        """
        if stream is not None and one(stream) not in self._states:
            raise InputError(f"there is no stream {stream!r}: it was never seen")
        return self.get(stream)

    def forget(self, stream: StreamId | None = None) -> None:
        """Forget one stream, or all of them."""
        self._states = {} if stream is None else {key: s for key, s in self._states.items() if key != one(stream)}

    @property
    def ids(self) -> list[StreamId]:
        """The streams that have a name."""
        return [stream for stream in self._states if stream is not None]

    def everything(self) -> State:
        """The named streams as one table, (S, ...) for each entry, and their packed ids.

        Raises:
            InputError: There are samples without a stream, too.
        """
        if None in self._states:
            raise InputError(
                "some samples were seen with a stream and some without: save one stream with stream=, or use only "
                "one way"
            )
        table = {name: np.stack([self._states[stream][name] for stream in self.ids]) for name in self.start}
        return {**table, IDS: pack_array(self.ids)}

    def replace(self, table: Mapping[str, Array]) -> None:
        """Replace all states by what `everything` returned."""
        ids = table_ids(table)
        self._states = {
            stream: {name: np.asarray(table[name][row]) for name in self.start} for row, stream in enumerate(ids)
        }


def table_ids(table: Mapping[str, Array]) -> list[StreamId]:
    """The stream ids of a table.

    Raises:
        StateError: They cannot be read, or are not as many as there are rows.
    """
    if IDS not in table:
        raise StateError("this state has no stream ids")
    ids = unpack_array(table[IDS])
    check_ids(ids, {name: rows for name, rows in table.items() if name != IDS})
    return ids


def checked_state(
    fields: Mapping[str, Field], arrays: Mapping[str, Array], like: Mapping[str, Array], many: bool
) -> State:
    """Validate a saved state, of one stream or a table of many, complete it and convert it to the dtypes of `like`.

    Raises:
        StateMismatchError: It belongs to another model or rule.
        StateError: It contains invalid values, such as NaN or a negative count.
    """
    given = {name: array for name, array in arrays.items() if name != IDS}
    if many and any(array.ndim == 0 for array in given.values()):
        raise StateMismatchError("it is not a table of streams")
    entries = completed(fields, given)
    shapes = {name: array.shape[1 if many else 0 :] for name, array in entries.items()}
    if shapes != {name: field.shape for name, field in fields.items()}:
        raise StateMismatchError(f"it contains {shapes}, which is not a state of this rule and number of classes")
    check_fields(fields, entries, like)
    check_subtracted(entries, np.dtype(np.float32))  # whatever the dtype of the next logits is
    if many:
        table_ids(arrays)
    state = {name: np.array(array, like[name].dtype) for name, array in entries.items()}
    return {**state, IDS: arrays[IDS]} if many else state


def ids_of(stream: StreamId | Iterable[StreamId] | None, rows: int) -> Sequence[StreamId | None]:
    """The stream of each row of a batch, from one id for all of them or one for each.

    Raises:
        InputError: An id is neither a string nor an integer, or there is another number of them.
    """
    if stream is None or isinstance(stream, str | int):
        return [None if stream is None else one(stream)] * rows
    ids = checked(stream)
    if len(ids) != rows:
        raise InputError(f"got {len(ids)} stream ids for a batch of {rows}: pass one per sample, or one for all")
    return ids


def weights_of(weights: Iterable[float] | Array | None, rows: int) -> Array | None:
    """How much each row of a batch counts, (B,) float64.

    Raises:
        InputError: One is negative, NaN or Inf, or there is another number of them.
    """
    if weights is None:
        return None
    given = weights.detach().cpu() if hasattr(weights, "detach") else weights
    try:
        numbers = np.array(given, np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"expected weights, one number per sample, got {weights!r}") from error
    if numbers.shape != (rows,):
        raise InputError(f"got weights of shape {numbers.shape} for a batch of {rows}: pass one per sample")
    bad = np.flatnonzero(~(np.isfinite(numbers) & (numbers >= 0)))
    if len(bad):
        raise InputError(f"weight {bad[0]} is {numbers[bad[0]]:g}: expected a finite number of at least 0")
    return numbers

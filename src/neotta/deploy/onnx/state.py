"""The states of an adaptive ONNX file, one for each stream, and how they are saved and loaded; needs no torch."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from neotta.deploy.onnx.card import Card
from neotta.errors import InputError, StateError, StateMismatchError
from neotta.neo.statefile import Array, read_arrays, write_arrays
from neotta.neo.stream_ids import StreamId, one, pack, unpack

State = dict[str, Array]
"""The state of one stream: a row for each head, (1, width) float32."""

_REFERENCE = "reference/"  # before the names of its arrays in a state file


class OnnxState:
    """Runs an adaptive graph, and keeps the state of each stream; None is the stream of calls that name none."""

    def __init__(self, session: Any, card: Card) -> None:
        self._card, self._session = card, session
        self._outputs = [port.name for port in session.get_outputs()]
        self._start = {head: np.array([row], np.float32) for head, row in card.state.items()}
        self._states: dict[StreamId | None, State] = {}

    def step(self, batch: Array, ids: Sequence[StreamId | None], learn: Array) -> tuple[Array, int]:
        """Run the graph once for each stream of a batch: first on the images that are learnt from, then on the others.

        Returns:
            Logits (B, C), and the number of images rejected because of NaN, Inf or their size.
        """
        logits: dict[int, Array] = {}  # by row
        after: dict[StreamId | None, State] = {}
        rejected = 0
        for stream in dict.fromkeys(ids):
            state, mine = self._of(stream), np.array([other == stream for other in ids])
            for adapt in (True, False):
                rows = np.flatnonzero(mine & (learn == adapt))
                if len(rows):
                    answers, new = self._run(batch[rows], state, adapt)
                    logits.update(zip(rows.tolist(), answers, strict=True))
                    if adapt:
                        rejected += sum(int(new[head][0, 1] - state[head][0, 1]) for head in state)
                        state = after[stream] = new
        self._states = {**self._states, **after}
        return np.stack([logits[row] for row in range(len(ids))]), rejected

    def plain(self, batch: Array) -> Array:
        """Logits of the plain model: nothing is subtracted with a blank state."""
        return self._run(batch, self._blank(), False)[0]

    def _run(self, batch: Array, state: State, adapt: bool) -> tuple[Array, State]:
        ports = {self._card.port(head): row for head, row in state.items()}
        values = self._session.run(self._outputs, {"images": batch, "adapt": np.array(adapt), **ports})
        outputs = dict(zip(self._outputs, values, strict=True))
        return outputs["logits"], {head: outputs[f"next_{self._card.port(head)}"] for head in state}

    # ---- streams

    @property
    def ids(self) -> list[StreamId]:
        """The streams that have a name."""
        return [stream for stream in self._states if stream is not None]

    def count(self, stream: StreamId | None) -> int:
        """Number of samples seen in a stream."""
        return max(int(row[0, 0]) for row in self._of(stream).values())

    def reset(self, stream: StreamId | None) -> None:
        """Forget one stream; or everything, including the state of the exported model."""
        if stream is not None:
            self._states = {key: state for key, state in self._states.items() if key != one(stream)}
        else:
            self._states, self._start = {}, self._blank()

    def _of(self, stream: StreamId | None) -> State:
        return self._states.get(stream, self._start)

    def _blank(self) -> State:
        return {
            head: np.array([[f["start"] for f in fields.values() for _ in range(_size(f))]], np.float32)
            for head, fields in self._card.fields.items()
        }

    # ---- files

    def named(self, stream: StreamId | None) -> dict[str, Array]:
        """A copy of the state of a stream with the names of a saved file."""
        if stream is not None and one(stream) not in self._states:
            raise InputError(f"there is no stream {stream!r}: it was never seen")
        return {name: values[0] for name, values in self._entries([self._of(stream)]).items()}

    def _entries(self, states: Sequence[State]) -> dict[str, Array]:
        """States as entries of a file, (S, ...) each."""
        arrays = {}
        for head, fields in self._card.fields.items():
            table = np.concatenate([state[head] for state in states]).astype(np.float64)
            parts = np.split(table, np.cumsum([_size(field) for field in fields.values()])[:-1], axis=1)
            for (name, field), part in zip(fields.items(), parts, strict=True):
                arrays[f"{head}.{name}"] = part.reshape(len(table), *field["shape"])
        return arrays

    def save(self, path: str | os.PathLike[str], stream: StreamId | None) -> None:
        """Save one stream, or all of them, in the format of `neotta.save`."""
        card, many = self._card, stream is None and bool(self.ids)
        about: dict[str, Any] = {"kind": "model", "method": card.method, "options": card.options, "heads": card.heads}
        if many and None in self._states:
            raise InputError("some samples were seen with a stream and some without: save one stream with stream=")
        if many:
            ids = {f"{head}.ids": pack(self.ids) for head in card.heads}
            arrays = {**self._entries(list(self._states.values())), **ids}
        else:
            arrays = self.named(stream)
        if card.reference is not None:
            about["reference"] = card.reference["digest"]
            arrays.update({f"{_REFERENCE}{name}": array for name, array in card.reference_arrays().items()})
        write_arrays(path, arrays, {**about, "streams": many})

    def read(self, path: str | os.PathLike[str], strict: bool, stream: StreamId | None) -> dict[StreamId | None, State]:
        """Read and validate the streams in a file; nothing changes."""
        source, card = repr(os.fspath(path)), self._card
        arrays, about = read_arrays(path)
        if about.get("kind") != "model" or (about.get("method"), about.get("options")) != (card.method, card.options):
            raise StateMismatchError(
                f"{source} contains the state of {about.get('method')!r} ({about.get('options')}), this classifier is "
                f"{card.method!r} ({card.options})"
            )
        if about.get("reference") != (None if card.reference is None else card.reference.get("digest")):
            raise StateMismatchError(f"{source} was saved with another reference than this classifier's")
        many = bool(about.get("streams"))
        if many and stream is not None:
            raise StateMismatchError(
                f"{source} contains many streams: save one of them with neotta.save(model, path, stream=...)"
            )
        arrays = {name: array for name, array in arrays.items() if not name.startswith(_REFERENCE)}
        try:
            ids: list[Any] = [None if stream is None else one(stream)] if not many else self._ids(arrays)
            tables = self._tables(arrays if many else {name: array[None] for name, array in arrays.items()}, len(ids))
        except StateMismatchError as error:
            raise StateMismatchError(f"{source} belongs to another model: {error}") from error
        except StateError as error:
            raise StateError(f"{source} cannot be used: {error}") from error
        if strict and about.get("heads") != card.heads:
            raise StateMismatchError(f"{source} was saved with other head weights (see strict=False)")
        return {item: {head: table[row : row + 1] for head, table in tables.items()} for row, item in enumerate(ids)}

    def put(self, states: Mapping[StreamId | None, State], stream: StreamId | None) -> None:
        """Take over what `read` returned: a stream, or in place of everything."""
        self._states = {**self._states, **states} if stream is not None else dict(states)

    def _ids(self, arrays: dict[str, Array]) -> list[StreamId]:
        packed = [arrays.pop(f"{head}.ids", None) for head in self._card.heads]
        if any(each is None for each in packed):
            raise StateMismatchError("it has no stream ids")
        ids = [unpack(each) for each in packed if each is not None]
        if any(each != ids[0] for each in ids) or len(set(ids[0])) != len(ids[0]):
            raise StateError("a stream occurs twice, or the heads have different streams")
        return ids[0]

    def _tables(self, arrays: Mapping[str, Array], streams: int) -> State:
        """The states in the entries of a file, (S, width) for each head."""
        fields = {f"{head}.{name}": field for head, some in self._card.fields.items() for name, field in some.items()}
        shapes = {name: (streams, *field["shape"]) for name, field in fields.items()}
        if {name: array.shape for name, array in arrays.items()} != shapes:
            raise StateMismatchError(f"expected the entries {shapes}")
        for name, field in fields.items():
            least = -math.inf if field["least"] is None else field["least"]
            most = math.inf if field["most"] is None else field["most"]
            values = arrays[name]
            with np.errstate(over="ignore"):
                finite = values.dtype.kind == "f" and bool(np.isfinite(values.astype(np.float32)).all())
            if not finite or not ((values >= least) & (values <= most)).all():
                raise StateError(f"entry {name!r} of this state holds NaN, Inf or numbers out of range")
        return {
            head: np.concatenate([arrays[f"{head}.{name}"].reshape(streams, -1) for name in some], 1, dtype=np.float32)
            for head, some in self._card.fields.items()
        }


def _size(field: Mapping[str, Any]) -> int:
    return math.prod(field["shape"])

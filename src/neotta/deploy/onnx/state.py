"""The states of an adaptive ONNX file, one for each stream, and how they are saved and loaded; needs no torch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from neotta.deploy.onnx.card import Card, port
from neotta.errors import InputError, StateError
from neotta.neo.codec import StateFile
from neotta.neo.statefile import Array
from neotta.neo.stream_ids import StreamId, one

State = dict[str, Array]
"""The state of one stream: a row for each head, (1, width) float32."""


class OnnxState:
    """Runs an adaptive graph, and keeps the state of each stream; None is the stream of calls that name none."""

    def __init__(self, session: Any, card: Card) -> None:
        self._file, self._session = card.states(), session
        self._outputs = [each.name for each in session.get_outputs()]
        self._start: State = {name: head.table.astype(np.float32) for name, head in self._file.heads.items()}
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
        ports = {port(head, state): row for head, row in state.items()}
        values = self._session.run(self._outputs, {"images": batch, "adapt": np.array(adapt), **ports})
        outputs = dict(zip(self._outputs, values, strict=True))
        return outputs["logits"], {head: outputs[f"next_{port(head, state)}"] for head in state}

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
            name: np.array([[each.start for each in head.fields.values() for _ in range(each.size)]], np.float32)
            for name, head in self._file.heads.items()
        }

    # ---- files

    def file(self, stream: StreamId | None) -> StateFile:
        """The state of a stream, or all streams if there are some."""
        many = stream is None and bool(self.ids)
        if many and None in self._states:
            raise InputError("some samples were seen with a stream and some without: save one stream with stream=")
        if stream is not None and one(stream) not in self._states:
            raise InputError(f"there is no stream {stream!r}: it was never seen")
        states = list(self._states.values()) if many else [self._of(None if stream is None else one(stream))]
        heads = {
            name: replace(
                head,
                ids=self.ids if many else None,
                table=np.concatenate([state[name] for state in states]).astype(np.float64),
            )
            for name, head in self._file.heads.items()
        }
        return replace(self._file, heads=heads)

    def read(self, path: str | os.PathLike[str], strict: bool, stream: StreamId | None) -> dict[StreamId | None, State]:
        """Read and validate the streams in a file; nothing changes."""
        source, file = repr(os.fspath(path)), StateFile.load(path)
        mine = self._file
        if file.many and stream is None:
            mine = replace(mine, heads={name: replace(head, ids=[]) for name, head in mine.heads.items()})
        found = file.fitted(mine, source, strict=strict, stream=stream)
        with np.errstate(over="ignore"):
            tables = {name: head.table.astype(np.float32) for name, head in found.items()}
        ids = [head.ids or [] for head in found.values()]
        if not all(np.isfinite(table).all() for table in tables.values()) or any(each != ids[0] for each in ids):
            raise StateError(f"{source} cannot be used: numbers are too large, or the heads have different streams")
        names: list[StreamId | None] = [*ids[0]] if file.many else [None if stream is None else one(stream)]
        return {item: {head: table[row : row + 1] for head, table in tables.items()} for row, item in enumerate(names)}

    def put(self, states: Mapping[StreamId | None, State], stream: StreamId | None) -> None:
        """Take over what `read` returned: a stream, or in place of everything."""
        self._states = {**self._states, **states} if stream is not None else dict(states)

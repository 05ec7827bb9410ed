"""The state of an adaptive ONNX file: which memory holds it, and how it is saved and loaded."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from neotta.deploy._card import Card
from neotta.deploy._card_reference import decoded
from neotta.deploy._graph_memory import GraphMemory, rule_of_card
from neotta.deploy._logit_memory import LogitMemory
from neotta.deploy._stream_states import StreamStates
from neotta.errors import OptionError, StateMismatchError
from neotta.neo.reference_file import PREFIX, Reference, as_reference
from neotta.neo.statefile import Array, read_arrays, write_arrays
from neotta.neo.stream_ids import StreamId, one
from neotta.neo.stream_rule import StreamRule


class OnnxState:
    """Runs an adaptive graph, and keeps the state of each stream.

    A rule on logits runs in NumPy, in float64, behind a graph that gets an empty state and returns the plain logits;
    other rules run in the graph.

    Args:
        session: The session of ONNX Runtime.
        card: The description of the file.
        reference: Where clean data lies, if a reference was given.
    """

    def __init__(self, session: Any, card: Card, reference: Reference | str | os.PathLike[str] | None) -> None:
        self.card = card
        self._session = session
        self._outputs = [port.name for port in session.get_outputs()]
        carried = [port.name for port in session.get_inputs()[1:] if port.name != "adapt"]
        self.reference = _reference_of(card, reference)
        self._in_graph = GraphMemory(card, self._run, carried)
        self._on_logits = None if card.bias is None else _logit_memory(card, self.reference)

    @property
    def states(self) -> StreamStates:
        """The state of each stream."""
        return self._memory.states

    @property
    def _memory(self) -> GraphMemory | LogitMemory:
        return self._in_graph if self._on_logits is None else self._on_logits

    def step(
        self, batch: Array, ids: Sequence[StreamId | None], adapt: bool, weights: Array | None
    ) -> tuple[Array, int]:
        """Logits of a batch, and the number of images excluded."""
        if self._on_logits is None:
            return self._in_graph.predict(batch, ids, adapt=adapt, weights=weights)
        logits = self.plain(batch)
        subtract, rejected = self._on_logits.step(logits, ids, adapt=adapt, weights=weights)
        return (logits - subtract).astype(np.float32), rejected

    def plain(self, batch: Array) -> Array:
        """Logits of the plain model: the graph gets a state without a shift and without a label prior."""
        return self._run({"images": batch, "adapt": np.array(False), **self._in_graph.neutral()})["logits"]

    def _run(self, feed: dict[str, Array]) -> dict[str, Array]:
        return dict(zip(self._outputs, self._session.run(self._outputs, feed), strict=True))

    def move_into_graph(self) -> None:
        """Run the rule inside the graph from now on, in float32."""
        if self.reference is not None and self.card.reference is None:
            raise OptionError(
                "the graph does not contain the reference: export the model adapted with it, or open the file without"
            )
        self._on_logits = None

    def count(self, stream: StreamId | None) -> int:
        """Number of samples seen in a stream."""
        return max(int(n) for name, n in self.states.get(stream).items() if name.rpartition(".")[2] == "count")

    def reset(self, stream: StreamId | None) -> None:
        """Forget one stream; or everything, including the state of the exported model."""
        self.states.forget(stream)
        if stream is None:
            self.states.start = self._memory.blank()

    def named(self, stream: StreamId | None) -> dict[str, Array]:
        """A copy of the state of a stream with the names of a saved file, which include the head."""
        prefix = "" if self._on_logits is None else f"{next(iter(self.card.heads))}."
        return {f"{prefix}{name}": np.array(value) for name, value in self.states.known(stream).items()}

    def save(self, path: str | os.PathLike[str], stream: StreamId | None) -> None:
        """Save one stream, or all of them, in the format of `neotta.save`."""
        many = stream is None and bool(self.states.ids)
        about: dict[str, Any] = {
            "kind": "model",
            "method": self.card.method,
            "options": self.card.options,
            "heads": self.card.heads,
            "streams": many,
        }
        if many and len(self.card.heads) > 1:
            raise OptionError("this model has several heads: save its streams one by one, with stream=")
        arrays = self._table() if many else self.named(stream)
        if self.reference is not None:
            about["reference"] = self.reference.digest
            arrays = {**arrays, **{f"{PREFIX}{name}": array for name, array in self.reference.arrays().items()}}
        write_arrays(path, arrays, about)

    def _table(self) -> dict[str, Array]:
        """All streams, (S, ...) for each entry, and their ids."""
        head = next(iter(self.card.heads))
        table = self.states.everything()
        return {name if name.startswith(f"{head}.") else f"{head}.{name}": array for name, array in table.items()}

    def read(
        self, path: str | os.PathLike[str], strict: bool, stream: StreamId | None
    ) -> tuple[Mapping[str, Array], bool]:
        """Read and validate a file; nothing changes.

        Returns:
            The entries, named as those of the memory, and whether they are a table of streams.
        """
        arrays, about = read_arrays(path)
        kind = (self.card.method, self.card.options)
        if about.get("kind") != "model" or (about.get("method"), about.get("options")) != kind:
            raise StateMismatchError(
                f"{os.fspath(path)!r} contains the state of {about.get('method')!r} ({about.get('options')}), "
                f"this classifier is {kind[0]!r} ({kind[1]})"
            )
        if about.get("reference") != (None if self.reference is None else self.reference.digest):
            raise StateMismatchError(f"{os.fspath(path)!r} was saved with another reference than this classifier's")
        arrays = {name: array for name, array in arrays.items() if not name.startswith(PREFIX)}
        many = bool(about.get("streams"))
        if many and (stream is not None or len(self.card.heads) > 1):
            raise StateMismatchError(
                f"{os.fspath(path)!r} contains many streams: save one of them with neotta.save(model, path, stream=...)"
            )
        try:
            state = self._checked(arrays, many)
        except StateMismatchError as error:
            raise StateMismatchError(f"{os.fspath(path)!r} belongs to another model: {error}") from error
        if strict and about.get("heads") != self.card.heads:
            raise StateMismatchError(f"{os.fspath(path)!r} was saved with other head weights (see strict=False)")
        return state, many

    def put(self, state: Mapping[str, Array], many: bool, stream: StreamId | None) -> None:
        """Take over what `read` returned."""
        if many:
            self.states.replace(state)
        else:
            self.states.put({None if stream is None else one(stream): dict(state)})

    def _checked(self, arrays: Mapping[str, Array], many: bool) -> dict[str, Array]:
        """Validate the entries of a file, named as those of the memory."""
        if self._on_logits is None:
            return self._in_graph.check(arrays, many)
        head = f"{next(iter(self.card.heads))}."
        if foreign := [name for name in arrays if not name.startswith(head)]:
            raise StateMismatchError(f"it contains {foreign[0]!r}")
        return self._on_logits.check({name.removeprefix(head): array for name, array in arrays.items()}, many)


def _reference_of(card: Card, given: Reference | str | os.PathLike[str] | None) -> Reference | None:
    """The reference in the file, or the given one if it fits the file."""
    inside = None if card.reference is None else decoded(card.reference)
    if given is None:
        return inside
    known = as_reference(given)
    known.check_fingerprints(card.heads)
    if inside is not None and inside != known:
        raise StateMismatchError("this file contains another reference: open it without reference=, or export it again")
    if inside is None and card.bias is None:
        raise OptionError(
            f"the rule of this file, {card.method}, runs in its graph, which contains no reference: export the model "
            "adapted with neotta.adapt(model, reference=...)"
        )
    if inside is None and card.samples:
        raise StateMismatchError(
            f"this file contains the state of {card.samples} samples, seen without the reference: export the model "
            "before it adapts"
        )
    return known


def _logit_memory(card: Card, known: Reference | None) -> LogitMemory:
    """The rule outside the graph, starting from the state of the exported model."""
    rule, bias = rule_of_card(card), np.array(card.bias)
    if known is not None and isinstance(rule, StreamRule):
        (head,) = known.heads.values()
        rule, bias = dataclasses.replace(rule, classes=head.classes), head.origin
    memory = LogitMemory(rule, bias)
    (state,) = card.state.values()
    memory.states.start = {name: np.array(state[name], value.dtype) for name, value in memory.states.start.items()}
    return memory

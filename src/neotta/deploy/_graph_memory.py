"""The state of an adaptive ONNX file, for each stream: the graph takes it and returns the next one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from neotta.deploy._card import Card
from neotta.deploy._packing import PACKED, pack, unpack
from neotta.deploy._stream_states import IDS, State, StreamStates, checked_state
from neotta.errors import InputError, StateMismatchError
from neotta.neo.rules import Field, MeanRule, Rule
from neotta.neo.statefile import Array
from neotta.neo.stream_ids import StreamId
from neotta.neo.stream_rule import StreamRule

Run = Callable[[dict[str, Array]], dict[str, Array]]


def rule_of_card(card: Card) -> Rule:
    """The rule of an adaptive file, without torch and pydantic."""
    if card.method == "neo-stream":
        return StreamRule(**card.options)
    names = ("weighting", "alpha", "debias", "shrinkage")
    return MeanRule(**{name: value for name, value in card.options.items() if name in names})


class GraphMemory:
    """States in the precision of the graph, float32.

    Args:
        card: The description of the file.
        run: Runs the graph: maps inputs by name to outputs by name.
        inputs: The names of the graph's inputs for the state.
    """

    def __init__(self, card: Card, run: Run, inputs: Sequence[str]) -> None:
        self._card = card
        self._run = run
        self._inputs = inputs
        rule = rule_of_card(card)
        self.fields: dict[str, dict[str, Field]] = {
            head: rule.fields(np.shape(entries["mean"])[-1]) for head, entries in card.state.items()
        }
        exported = {f"{head}.{name}": (head, name, v) for head, e in card.state.items() for name, v in e.items()}
        self.states = StreamStates({**self.blank(), **{key: self._typed(*item) for key, item in exported.items()}})

    def _typed(self, head: str, name: str, value: Any) -> Array:
        return np.array(value, np.int64 if self.fields[head][name].kind == "count" else np.float32)

    def blank(self) -> State:
        """The state of a new stream, without that of the exported model."""
        return {
            f"{head}.{name}": self._typed(head, name, np.full(field.shape, field.start))
            for head, fields in self.fields.items()
            for name, field in fields.items()
        }

    def neutral(self) -> dict[str, Array]:
        """Inputs of the graph with which it returns the logits of the plain model."""
        return self._inputs_of(self.blank())

    def check(self, arrays: Mapping[str, Array], many: bool) -> State:
        """Validate a saved state, of one stream or a table of many.

        Raises:
            StateMismatchError: It belongs to another model or rule.
            StateError: It contains invalid values, such as NaN or a negative count.
        """
        state: State = {}
        for head, fields in self.fields.items():
            mine = {name.removeprefix(f"{head}."): a for name, a in arrays.items() if name.startswith(f"{head}.")}
            like = {name: self.states.start[f"{head}.{name}"] for name in fields}
            found = checked_state(fields, mine, like, many)
            if bool((found.get("discount", np.zeros(1)) != 0).any()):
                raise StateMismatchError("its samples have weights other than 0 and 1, which this file cannot continue")
            state.update({name if name == IDS else f"{head}.{name}": array for name, array in found.items()})
        if foreign := [name for name in arrays if name not in state and not name.endswith(f".{IDS}")]:
            raise StateMismatchError(f"it contains {foreign[0]!r}")
        return state

    def predict(
        self, batch: Array, ids: Sequence[StreamId | None], *, adapt: bool, weights: Array | None
    ) -> tuple[Array, int]:
        """Run the graph once for each stream of a batch.

        Args:
            batch: Preprocessed images, at least one.
            ids: The stream of each image.
            adapt: Whether to adapt.
            weights: 0 or 1 for each image; None for 1.

        Returns:
            Logits (B, C), and the number of images excluded because of NaN or Inf.
        """
        if weights is not None and not np.isin(weights, (0.0, 1.0)).all():
            raise InputError(
                "the rule of this file takes weights of 0 or 1: export the model with neo-stream for others"
            )
        places = {stream: [row for row, other in enumerate(ids) if other == stream] for stream in dict.fromkeys(ids)}
        logits: list[Any] = [None] * len(ids)
        after: dict[StreamId | None, State] = {}
        rejected = 0
        for stream, rows in places.items():
            state = self.states.get(stream)
            learnt = [row for row in rows if weights is None or weights[row]] if adapt else []
            others = [row for row in rows if row not in set(learnt)]
            if learnt:
                outputs = self._run({"images": batch[learnt], "adapt": np.array(True), **self._inputs_of(state)})
                rejected += sum(int(outputs[self._card.port(head, "rejected")]) for head in self.fields)
                state = after[stream] = self._next(state, outputs)
                _fill(logits, learnt, outputs["logits"])
            if others:
                outputs = self._run({"images": batch[others], "adapt": np.array(False), **self._inputs_of(state)})
                _fill(logits, others, outputs["logits"])
        self.states.put(after)
        return np.stack(logits), rejected

    def _inputs_of(self, state: Mapping[str, Array]) -> dict[str, Array]:
        ports = {self._card.port(head, name): state[f"{head}.{name}"] for head, f in self.fields.items() for name in f}
        for head, fields in self.fields.items():
            port = self._card.port(head, PACKED)
            if port in self._inputs:
                ports[port] = pack(fields, {name: state[f"{head}.{name}"] for name in fields}).astype(np.float32)
        return {name: ports[name] for name in self._inputs}

    def _next(self, before: State, outputs: Mapping[str, Array]) -> State:
        """The state that a call returned."""
        after = dict(before)
        for head, fields in self.fields.items():
            port = self._card.port
            packed = outputs.get(f"next_{port(head, PACKED)}")
            found = {} if packed is None else unpack(fields, packed)
            for name in fields:
                value = found.get(name, outputs.get(f"next_{port(head, name)}"))
                if value is not None:
                    after[f"{head}.{name}"] = self._typed(head, name, value)
            after[f"{head}.rejected"] = before[f"{head}.rejected"] + outputs[port(head, "rejected")]
            if f"next_{port(head, 'batches')}" not in outputs:
                more = after[f"{head}.count"] > before[f"{head}.count"]
                after[f"{head}.batches"] = before[f"{head}.batches"] + more
        return after


def _fill(rows: list[Any], places: Sequence[int], values: Array) -> None:
    for place, value in zip(places, values, strict=True):
        rows[place] = value

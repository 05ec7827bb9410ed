"""A model behind a server: one forward pass for all cameras, then each row re-centered with its camera's state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from neotta.errors import InputError, StateError, StateMismatchError
from neotta.models.preprocess import Preprocess
from neotta.monitoring.health import Health, health_of
from neotta.neo.files import entries, states_in
from neotta.neo.state import LARGEST
from neotta.neo.statefile import Array
from neotta.neo.streams import Streams

Snapshot = dict[str, Tensor]
"""The state of one camera as entries of a state file: tensors by `HEAD.FIELD`."""


class Forward(NamedTuple):
    """What the plain model says of a batch.

    Attributes:
        logits: (N, C) float32.
        embeddings: The input of each head, (N, d); empty if the model does not show it.
    """

    logits: Array
    embeddings: tuple[Tensor, ...] = ()

    def usable(self) -> Array:
        """Which rows can be learnt from, (N,): those without NaN, Inf or numbers too large to sum up."""
        parts = [np.abs(rows.float().cpu().numpy()).reshape(len(rows), -1) for rows in self.embeddings]
        with np.errstate(invalid="ignore"):
            good = [(part <= LARGEST).all(1) for part in (np.abs(self.logits), *parts)]
        return np.asarray(np.logical_and.reduce(good))


class Engine(ABC):
    """A model and the states of its cameras. Not thread-safe: one thread owns it.

    Attributes:
        rule: Name of the rule: "neo-stream", ..., or "none".
        options: The options of the rule.
        classes: Number of classes C.
        labels: Names of the classes.
        preprocess: Makes the model's input from images.
        streams: The states of the cameras, by head; empty for the rule "none".
    """

    rule: str
    options: dict[str, Any]
    classes: int
    labels: tuple[str, ...]
    preprocess: Preprocess
    streams: dict[str, Streams]

    @abstractmethod
    def forward(self, images: Array) -> Forward:
        """Run the plain model on preprocessed images, (N, 3, H, W) float32."""

    @abstractmethod
    def recenter(self, forward: Forward, rows: Array, cameras: Sequence[str], adapt: bool) -> Array:
        """Re-center some rows of a batch.

        Args:
            forward: What `forward` returned.
            rows: Which rows, (n,), in order of arrival.
            cameras: The camera of each row, n ids.
            adapt: Whether to learn from them; if not, nothing changes.

        Returns:
            Their logits, (n, C) float32.
        """

    def head_logits(self, embeddings: Tensor) -> Tensor | None:
        """Logits of the plain head for changed embeddings, (..., d) to (..., C); None if it is not known."""
        return None

    # ---- the cameras' states

    def begin_with(self, tensors: Mapping[str, Tensor], about: Mapping[str, Any], source: str) -> None:
        """Let new cameras start from a saved state.

        Raises:
            StateError: It belongs to another model, or holds values that no stream can have.
        """
        if about.get("heads") != self.about().get("heads"):
            raise StateMismatchError(f"{source!r} was saved with other head weights: it belongs to another model")
        for streams, state in self._states(tensors):
            streams.begin_with(state)

    @property
    def adapts(self) -> bool:
        """Whether there is anything to adapt."""
        return bool(self.streams)

    @property
    def stored(self) -> bool:
        """Whether states outlive the process."""
        return any(streams.spill is not None for streams in self.streams.values())

    def counts(self) -> dict[str, int]:
        """Number of samples learnt from, by camera."""
        for streams in self.streams.values():
            return {str(camera): count for camera, count in streams.counts().items()}
        return {}

    def health(self, camera: str) -> Health | None:
        """How adapting to a camera is doing; None if nothing was learnt of it."""
        for streams in self.streams.values():
            state = _known(streams, camera)
            return None if state is None else health_of(streams.rule, state)
        return None

    def flush(self, cameras: Iterable[str]) -> None:
        """Write the states of cameras; they are on disk when this returns."""
        chosen = list(cameras)
        for streams in self.streams.values():
            if streams.spill is not None:
                streams.flush(chosen)

    def reset(self, camera: str) -> None:
        """Forget what was learnt of a camera."""
        for streams in self.streams.values():
            streams.reset(camera)

    def snapshot(self, camera: str) -> Snapshot | None:
        """A copy of a camera's state; None if nothing was learnt of it."""
        parts: Snapshot = {}
        for head, streams in self.streams.items():
            state = _known(streams, camera)
            if state is None:
                return None
            entry = entries(streams.layout, [], state.cpu(), many=False)
            parts.update({f"{head}.{name}": values for name, values in entry.items()})
        return parts or None

    def restore(self, camera: str, snapshot: Snapshot) -> None:
        """Give a camera the state of a snapshot.

        Raises:
            StateError: It does not fit, or holds values that no stream can have.
        """
        for streams, state in self._states(snapshot):
            streams.put(state, camera)

    def _states(self, snapshot: Mapping[str, Tensor]) -> list[tuple[Streams, Tensor]]:
        """The checked state of each head in a snapshot."""
        checked = []
        for head, streams in self.streams.items():
            part = {name[len(head) + 1 :]: values for name, values in snapshot.items() if name.startswith(f"{head}.")}
            try:
                checked.append((streams, states_in(streams.layout, streams.rule, part, False)[1]))
            except StateMismatchError as error:
                raise StateError(f"the state has no part for the head {head!r} of this model: {error}") from error
        return checked

    def close(self) -> None:
        """Let another process open the states; the engine cannot be used any more."""
        for streams in self.streams.values():
            if streams.spill is not None:
                streams.spill.close()

    def about(self) -> dict[str, Any]:
        """What an exported state says of itself."""
        return {"kind": "camera", "method": self.rule, "options": self.options, "streams": False}


def _known(streams: Streams, camera: str) -> Tensor | None:
    """The state of a camera, (1, width); None if it was never seen."""
    try:
        return streams.state(camera)
    except InputError:
        return None


def softmax(logits: Array) -> Array:
    """Probabilities, (N, C), of logits."""
    return np.asarray(torch.from_numpy(np.asarray(logits)).softmax(-1).numpy())

"""A model behind a server: one forward pass for all cameras, then each row re-centered with its camera's state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from neotta.deploy.serve.redis_share import RedisShare
from neotta.deploy.serve.shared_moments import Shared, check_rule, shared_part, with_shared
from neotta.errors import StateError, StateMismatchError
from neotta.models.preprocess import Preprocess
from neotta.neo.memory import OneStreamMemory
from neotta.neo.moments import limit
from neotta.neo.recent_answers import Evidence, RecentAnswers
from neotta.neo.sqlite_store import SqliteStore
from neotta.neo.statefile import Array
from neotta.neo.stream_memory import StreamMemory

Snapshot = dict[str, Array]
"""The state of one camera: arrays by `HEAD.FIELD`."""


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
        largest = limit(np.dtype(np.float32))
        parts = [np.abs(rows.float().cpu().numpy()).reshape(len(rows), -1) for rows in self.embeddings]
        with np.errstate(invalid="ignore"):
            good = [(part <= largest).all(1) for part in (np.abs(self.logits), *parts)]
        return np.asarray(np.logical_and.reduce(good))


class Engine(ABC):
    """A model and the states of its cameras. Not thread-safe: one thread owns it.

    Attributes:
        start: What new cameras start from; None for nothing.
        rule: Name of the rule: "neo-stream", ..., or "none".
        options: The options of the rule.
        classes: Number of classes C.
        labels: Names of the classes.
        preprocess: Makes the model's input from images.
        shares: What replicas share, by head; empty if there is only this one.
        memories: Where the states of the cameras live, by head; empty for the rule "none".
    """

    start: Snapshot | None = None
    shares: dict[str, RedisShare] = {}  # noqa: RUF012  # replaced by `share`, never changed
    rule: str
    options: dict[str, Any]
    classes: int
    labels: tuple[str, ...]
    preprocess: Preprocess
    memories: dict[str, StreamMemory]

    @abstractmethod
    def forward(self, images: Array) -> Forward:
        """Run the plain model on preprocessed images, (N, 3, H, W) float32."""

    @abstractmethod
    def recenter(self, forward: Forward, rows: Array, cameras: Sequence[str], adapt: bool) -> Array:
        """Re-center some rows of a batch.

        Args:
            forward: What `forward` returned.
            rows: Which rows, (n,), in order of arrival.
            cameras: The camera of each of them, n ids.
            adapt: Whether to learn from them; if not, nothing changes.

        Returns:
            Their logits, (n, C) float32.
        """

    def head_logits(self, embeddings: Tensor) -> Tensor | None:
        """Logits of the plain head for changed embeddings, (..., d) to (..., C); None if it is not known."""
        return None

    # ---- does adapting help?

    def evidence(self, camera: str) -> Evidence:
        """What the last answers to a camera say, and whether adapting hurts; see `neotta.neo.recent_answers`."""
        return RecentAnswers().evidence()

    def forget_answers(self, camera: str) -> None:  # noqa: B027  # nothing to forget by default
        """Forget the last answers to a camera: its state was changed."""

    # ---- the cameras' states

    def begin_with(self, tensors: Mapping[str, Tensor], about: Mapping[str, Any], source: str) -> None:
        """Let new cameras start from a saved state.

        Raises:
            StateError: It belongs to another model, or holds values that no stream can have.
        """
        if about.get("heads") != self.about().get("heads"):
            raise StateMismatchError(f"{source!r} was saved with other head weights: it belongs to another model")
        self.start = {name: tensor.cpu().numpy() for name, tensor in tensors.items()}
        self._centroids(self.start)

    def share(self, url: str, replica: str | None = None) -> None:
        """Share the states of cameras with other replicas through Redis.

        Raises:
            OptionError: The rule's states do not add up.
            StorageError: Redis cannot be reached.
        """
        for memory in self.memories.values():
            check_rule(memory.rule)
        self.shares = {head: RedisShare(url, f"{self.owner()} {head}", replica) for head in self.memories}

    def owner(self) -> str:
        """What tells the states of this model and rule from those of others."""
        return f"{self.about().get('heads')} {self.rule} {self.about()['options']}"

    def welcome(self, cameras: Iterable[str]) -> None:
        """Give cameras that have no state yet the one that other replicas know, or the one to start from."""
        for head, share in self.shares.items():
            for camera, moments in share.fetch(list(cameras)).items():
                self._adopt(head, camera, moments, fresh=True)
        if self.start is None:
            return
        for camera in cameras:
            if all(memory.cache.read(camera) is None for memory in self.memories.values()):
                self.restore(camera, self.start)

    @property
    def adapts(self) -> bool:
        """Whether there is anything to adapt."""
        return bool(self.memories)

    @property
    def stored(self) -> bool:
        """Whether states outlive the process."""
        return bool(self.shares) or any(memory.cache.store is not None for memory in self.memories.values())

    def counts(self) -> dict[str, int]:
        """Number of samples learnt from, by camera; 0 for those of other replicas that were not met here."""
        found: dict[str, int] = {}
        for share in self.shares.values():
            found = dict.fromkeys(share.cameras(), 0)
        for memory in self.memories.values():
            return {**found, **{str(camera): count for camera, count in memory.counts().items()}}
        return found

    def counts_of(self, camera: str) -> int:
        """Number of samples learnt from, of one camera."""
        for memory in self.memories.values():
            state = memory.cache.read(camera)
            return 0 if state is None else int(state["count"][0])
        return 0

    def _adopt(self, head: str, camera: str, moments: Shared, *, fresh: bool) -> None:
        """Take over the moments that all replicas share; with `fresh`, nothing of this replica's own stays."""
        memory = self.memories[head]
        state = None if fresh else memory.cache.read(camera)
        own = memory.blank().state() if state is None else {name: values[0] for name, values in state.items()}
        merged = with_shared(memory.rule, {name: values.cpu().numpy() for name, values in own.items()}, moments)
        blank = memory.blank()
        blank.load_state({name: torch.from_numpy(np.array(values)) for name, values in merged.items()})
        memory.put(blank, camera)

    def _deliver(self, cameras: Sequence[str]) -> list[str]:
        """Add what cameras learnt to what replicas share; those that could not be delivered."""
        left: list[str] = []
        for head, share in self.shares.items():
            memory, states = self.memories[head], {}
            for camera in cameras:
                state = memory.cache.read(camera)
                if state is not None:
                    own = {name: values[0].cpu().numpy() for name, values in state.items()}
                    states[camera] = shared_part(memory.rule, own)
            done = share.add(states)
            for camera, (moments, fresh) in done.items():
                self._adopt(head, camera, moments, fresh=fresh)
            left += [camera for camera in states if camera not in done]
        return left

    def flush(self, cameras: Iterable[str]) -> list[str]:
        """Write the states of cameras; they are on disk, or with Redis, when this returns.

        Returns:
            Cameras that could not be delivered to Redis for now; they have to be given again.
        """
        chosen = list(cameras)
        if self.shares:
            return self._deliver(chosen)
        for memory in self.memories.values():
            if memory.cache.store is not None:
                memory.flush(chosen)
        return []

    def reset(self, camera: str) -> None:
        """Forget what was learnt of a camera, in all replicas.

        Raises:
            StorageError: Redis cannot be reached.
        """
        for share in self.shares.values():
            share.replace(camera, None)
        for memory in self.memories.values():
            memory.reset(camera)

    def snapshot(self, camera: str) -> Snapshot | None:
        """A copy of a camera's state; None if nothing was learnt of it."""
        found: Snapshot = {}
        for head, memory in self.memories.items():
            state = memory.cache.read(camera)
            if state is None:
                return None
            found.update({f"{head}.{name}": values[0].cpu().numpy() for name, values in state.items()})
        return found or None

    def restore(self, camera: str, snapshot: Snapshot) -> None:
        """Give a camera the state of a snapshot.

        Raises:
            StateError: It does not fit, or holds values that no stream can have.
        """
        centroids = self._centroids(snapshot)
        for (memory, centroid), share in zip(centroids, self.shares.values(), strict=False):
            own = {name: values.cpu().numpy() for name, values in centroid.state().items()}
            share.replace(camera, shared_part(memory.rule, own))
        for memory, centroid in centroids:
            memory.put(centroid, camera)

    def _centroids(self, snapshot: Snapshot) -> list[tuple[StreamMemory, OneStreamMemory]]:
        """The checked centroid of each head in a snapshot."""
        checked = []
        for head, memory in self.memories.items():
            blank = memory.blank()
            part = {name[len(head) + 1 :]: values for name, values in snapshot.items() if name.startswith(f"{head}.")}
            if set(part) != set(memory.cache.fields):
                raise StateError(f"the state has no part for the head {head!r} of this model")
            blank.load_state({name: torch.from_numpy(np.array(values)) for name, values in part.items()})
            checked.append((memory, blank))
        return checked

    def close(self) -> None:
        """Let another process open the states; the engine cannot be used any more."""
        for share in self.shares.values():
            share.close()
        for memory in self.memories.values():
            if isinstance(memory.cache.store, SqliteStore):
                memory.cache.store.close()

    def about(self) -> dict[str, Any]:
        """What an exported state says of itself."""
        return {"kind": "camera", "method": self.rule, "options": self.options, "streams": False}

"""From jobs to answers: one forward pass, each row re-centered for its camera, and what was learnt written down."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from neotta.deploy.serve.engine import Engine, Forward
from neotta.errors import InputError
from neotta.neo.statefile import Array


class Job(NamedTuple):
    """Images of one camera that belong together.

    Attributes:
        images: Preprocessed, (n, 3, H, W) float32.
        camera: Id of the camera.
        adapt: Whether to learn from them.
        pixels: The images before preprocessing, if they are known: (H, W, 3) uint8 each.
    """

    images: Array
    camera: str
    adapt: bool = True
    pixels: Sequence[Array] = ()


class Answer(NamedTuple):
    """What is said of a job.

    Attributes:
        plain: Logits of the plain model, (n, C) float32.
        adapted: Logits of the adapted model, (n, C) float32; the same where nothing adapts.
        learnt: Whether the camera learnt from these images.
    """

    plain: Array
    adapted: Array
    learnt: bool


class Batch(NamedTuple):
    """A batch after its answers are known, for whoever watches.

    Attributes:
        jobs: The jobs in order of arrival.
        answers: The answer to each job.
        forward: What the plain model said of all rows together.
    """

    jobs: Sequence[Job]
    answers: Sequence[Answer]
    forward: Forward


class Classifier:
    """Answers batches of jobs. Not thread-safe: one thread owns it.

    Args:
        engine: The model.
        frozen: Tells which cameras are not to adapt.
        durable: Seconds between two writes, which the caller times by calling `flush`; 0 writes every batch before it
            is answered.
        watch: Called with every batch.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        frozen: Callable[[str], bool] = lambda camera: False,
        durable: float = 0.0,
        watch: Callable[[Batch], None] = lambda batch: None,
    ) -> None:
        self.engine, self.durable = engine, durable
        self._frozen, self._watch = frozen, watch
        self.dirty: dict[str, None] = {}  # cameras with unwritten changes, in order

    def run(self, jobs: Sequence[Job]) -> list[Answer]:
        """Answer a batch; with `durable` 0 what it taught is on disk when this returns."""
        if not jobs:
            return []
        for job in jobs:
            if job.images.shape[1:] != jobs[0].images.shape[1:]:
                raise InputError("images of a batch differ in size")
        one = len(jobs) == 1  # as it lies in the body of a request, perhaps not at an even address
        images = (
            np.require(jobs[0].images, None, ["C", "A", "W"]) if one else np.concatenate([job.images for job in jobs])
        )
        forward = self.engine.forward(images)
        learns = [job.adapt and self.engine.adapts and not self._frozen(job.camera) for job in jobs]
        adapted = self._recentered(forward, jobs, learns)
        self.dirty.update(dict.fromkeys(job.camera for job, learnt in zip(jobs, learns, strict=True) if learnt))
        ends = np.cumsum([len(job.images) for job in jobs])
        parts = [slice(end - len(job.images), end) for job, end in zip(jobs, ends, strict=True)]
        answers = [
            Answer(forward.logits[part], adapted[part], learnt) for part, learnt in zip(parts, learns, strict=True)
        ]
        if not self.durable:
            self.flush()
        self._watch(Batch(jobs, answers, forward))
        return answers

    def _recentered(self, forward: Forward, jobs: Sequence[Job], learns: Sequence[bool]) -> Array:
        """The adapted logits of all rows, (N, C): first of those that are learnt from, then of the others."""
        if not self.engine.adapts:
            return forward.logits
        adapted = np.empty_like(forward.logits)
        counts = [len(job.images) for job in jobs]
        mask = np.repeat(learns, counts) & forward.usable()
        cameras = np.repeat(np.array([job.camera for job in jobs], object), counts)
        for adapt in (True, False):
            rows = np.flatnonzero(mask == adapt)
            if len(rows):
                adapted[rows] = self.engine.recenter(forward, rows, cameras[rows].tolist(), adapt)
        return adapted

    def flush(self) -> None:
        """Write what was learnt since the last write."""
        if self.dirty:
            self.engine.flush(self.dirty)
            self.dirty = {}

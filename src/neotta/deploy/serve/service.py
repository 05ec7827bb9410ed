"""Everything behind the routes: the model, its cameras, and the queue of requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from neotta.deploy.serve.batcher import Batcher
from neotta.deploy.serve.classifier import Answer, Classifier, Job
from neotta.deploy.serve.engine import Engine
from neotta.deploy.serve.guard import RequestError
from neotta.deploy.serve.logs import log
from neotta.deploy.serve.records import Records
from neotta.deploy.serve.settings import Settings
from neotta.deploy.serve.watch import Watch

Result = TypeVar("Result")


class Service:
    """A model that is served.

    Args:
        engine: The model.
        settings: How it is served.
        records: What is kept of cameras; in memory by default.
        threshold: Threshold of the accuracy estimate (see `learn_threshold`), if clean images were given.

    Attributes:
        known: The ids of all cameras.
        watch: Live figures of every camera.
        ending: Set when the server is told to end.
    """

    def __init__(
        self, engine: Engine, settings: Settings, records: Records | None = None, *, threshold: float | None = None
    ) -> None:
        self.engine, self.settings = engine, settings
        self.records = Records() if records is None else records
        self.watch = Watch(engine, self.records, settings, threshold)
        self.classifier = Classifier(engine, frozen=self.records.frozen, durable=settings.durable, watch=self.watch)
        self.batcher: Batcher | None = None
        self.known = {*engine.counts(), *self.records.cameras()}
        self.started = time.monotonic()
        self.ending = False
        self._ticking: asyncio.Task[None] | None = None

    # ---- starting and ending

    async def start(self) -> None:
        """Begin to answer."""
        self.batcher = Batcher(self.classifier, self.settings.limits)
        self.batcher.start()
        self._ticking = asyncio.create_task(self._tick())
        log("started", model=self.settings.name, rule=self.engine.rule, cameras=len(self.known))

    async def close(self) -> None:
        """Answer what was accepted, and write what was learnt."""
        self.ending = True
        if self._ticking is not None:
            self._ticking.cancel()
        if self.batcher is not None:
            await self.batcher.close()
            self.watch.tick()
        self.engine.close()
        self.records.close()
        log("stopped", model=self.settings.name)

    @property
    def ready(self) -> bool:
        """Whether requests are answered."""
        return self.batcher is not None and not self.batcher.closing

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self.settings.history)
            try:
                await self.call(self.watch.tick)
            except Exception as error:
                log("error", error=type(error).__name__, message=str(error))

    # ---- answering

    async def answer(self, job: Job) -> Answer:
        """Answer a job, together with those of other cameras."""
        if self.batcher is None:
            raise RequestError(503, "the server is starting", {"Retry-After": "1"})
        if job.adapt and self.engine.adapts and job.camera not in self.known:
            most = self.settings.limits.cameras
            if len(self.known) >= most:
                raise RequestError(403, f"{most:,} cameras are known, the limit: forget one, or send adapt=false")
            self.known.add(job.camera)
        answer = await self.batcher.submit(job)
        if not (np.isfinite(answer.plain).all() and np.isfinite(answer.adapted).all()):
            raise RequestError(422, "the model has no finite answer to these images: their values are too large")
        return answer

    async def call(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Run something in the thread that owns the model."""
        if self.batcher is None:
            raise RequestError(503, "the server is starting", {"Retry-After": "1"})
        return await self.batcher.call(work, *arguments)

    def metadata(self) -> dict[str, Any]:
        """The description of the model that the protocol asks for."""
        height, width = self.engine.preprocess.size
        classes = self.engine.classes
        outputs = [("logits", "FP32", [-1, classes]), ("probabilities", "FP32", [-1, classes])]
        outputs += [("label", "BYTES", [-1])]
        outputs += [(name, "INT64", [-1]) for name in ("class", "plain_class", "adapted_class")]
        return {
            "name": self.settings.name,
            "versions": ["1"],
            "platform": "neotta",
            "inputs": [{"name": "images", "datatype": "FP32", "shape": [-1, 3, height, width]}],
            "outputs": [{"name": name, "datatype": kind, "shape": shape} for name, kind, shape in outputs],
            "parameters": {"rule": self.engine.rule, "shadow": self.settings.shadow},
        }

    # ---- acting on cameras, in the thread that owns the model

    def reset(self, camera: str) -> None:
        """Forget what was learnt of a camera; a snapshot is kept."""
        self.watch.snapshot(camera)
        self.engine.reset(camera)
        self.classifier.dirty.pop(camera, None)
        self.watch.renew(camera)

    def roll_back(self, camera: str, to: float) -> float | None:
        """Go back to the last snapshot up to a time; its own time, or None if there is none."""
        snapshot = self.records.snapshot(camera, to)
        if snapshot is None:
            return None
        self.watch.snapshot(camera)
        self.engine.restore(camera, snapshot[1])
        self.engine.flush([camera])
        self.watch.renew(camera)
        return snapshot[0]

    def forget(self, camera: str) -> None:
        """Delete everything about a camera."""
        self.engine.reset(camera)
        self.classifier.dirty.pop(camera, None)
        self.records.forget(camera)
        self.watch.drop(camera)
        self.known.discard(camera)

"""Everything behind the routes: the model, its cameras, and the queue of requests."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from neotta.deploy.serve.batcher import Batcher
from neotta.deploy.serve.classifier import Answer, Batch, Classifier, Job
from neotta.deploy.serve.engine import Engine
from neotta.deploy.serve.logs import log
from neotta.deploy.serve.records import Records
from neotta.deploy.serve.refusal import Refusal
from neotta.deploy.serve.settings import Settings


class Service:
    """A model that is served.

    Args:
        engine: The model.
        settings: How it is served.
        records: What is kept of cameras; in memory by default.
    """

    def __init__(self, engine: Engine, settings: Settings, records: Records | None = None) -> None:
        self.engine, self.settings = engine, settings
        self.records = Records() if records is None else records
        self.classifier = Classifier(engine, frozen=self.records.frozen, durable=settings.durable, watch=self._watched)
        self.batcher: Batcher | None = None
        self.known = {*engine.counts(), *self.records.cameras()}
        self.started = time.monotonic()
        self.ending = False  # set when the server is told to end

    # ---- starting and ending

    async def start(self) -> None:
        """Begin to answer."""
        self.batcher = Batcher(self.classifier, self.settings.limits)
        self.batcher.start()
        log("started", model=self.settings.name, rule=self.engine.rule, cameras=len(self.known))

    async def close(self) -> None:
        """Answer what was accepted, and write what was learnt."""
        if self.batcher is not None:
            await self.batcher.close()
        self.engine.close()
        self.records.close()
        log("stopped", model=self.settings.name)

    @property
    def ready(self) -> bool:
        """Whether requests are answered."""
        return self.batcher is not None and not self.batcher.closing

    # ---- answering

    async def answer(self, job: Job) -> Answer:
        """Answer a job, together with those of other cameras.

        Raises:
            Refusal: There are too many cameras or requests, or it took too long.
        """
        if self.batcher is None:
            raise Refusal(503, "the server is starting", {"Retry-After": "1"})
        if job.adapt and self.engine.adapts and job.camera not in self.known:
            most = self.settings.limits.cameras
            if len(self.known) >= most:
                raise Refusal(403, f"{most:,} cameras are known, which is the limit: forget one, or send adapt=false")
            self.known.add(job.camera)
        answer = await self.batcher.submit(job)
        if not (np.isfinite(answer.plain).all() and np.isfinite(answer.adapted).all()):
            raise Refusal(422, "the model has no finite answer to these images: their values are too large")
        return answer

    def _watched(self, batch: Batch) -> None:
        """Called with every batch, in the thread that owns the model."""

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

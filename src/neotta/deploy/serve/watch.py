"""Watches every batch: the figures of each camera, alarms, history and snapshots."""

from __future__ import annotations

import io
import threading
import time
from collections import OrderedDict, deque
from typing import Any

import numpy as np
from PIL import Image

from neotta.deploy.serve.alarms import Sketch, VideoDetector
from neotta.deploy.serve.classifier import Batch, Job
from neotta.deploy.serve.engine import Engine
from neotta.deploy.serve.figures import Dropout, Figures, Rows, best, estimates
from neotta.deploy.serve.logs import log
from neotta.deploy.serve.records import Records
from neotta.deploy.serve.settings import Settings
from neotta.errors import NeottaError

VIEWS = 2000
"""Most cameras with live figures; those not seen for longest are dropped, their history stays."""

RECENT = 600.0
"""Seconds that an alarm is shown at a glance."""


class View:
    """One camera, live.

    Attributes:
        figures: Figures of the last samples.
        detector: Detects changes, which raise alarms.
        seen: Samples since the server started.
        learnt: Samples learnt from since the server started.
        version: Grows with every change, over all cameras.
        images: The last images as JPEG files, newest last.
    """

    def __init__(self, classes: int, images: int) -> None:
        self.figures, self.detector = Figures(classes), VideoDetector()
        self.images: deque[bytes] = deque(maxlen=max(images, 1))
        self.seen = self.learnt = self.alarms = self.version = 0
        self.last = self.alarmed = -np.inf
        self.snapshot_taken = -np.inf  # by time.monotonic()
        self.ticked = 0


class Watch:
    """Watches batches, in the thread that owns the model; figures may be read from others.

    Args:
        engine: The model.
        records: Where history, alarms and snapshots go.
        settings: What is kept.
        threshold: Threshold of the accuracy estimate, if clean images were given.
    """

    def __init__(self, engine: Engine, records: Records, settings: Settings, threshold: float | None = None) -> None:
        self._engine, self._records, self._settings = engine, records, settings
        self.threshold = threshold
        self._dropout, self._sketch = Dropout(engine), Sketch()
        self._views: OrderedDict[str, View] = OrderedDict()
        self._lock = threading.RLock()
        self.version = 0

    # ---- batches

    def __call__(self, batch: Batch) -> None:
        """Take in a batch after it was answered."""
        adapted = np.concatenate([answer.adapted for answer in batch.answers])
        usable = batch.forward.usable() & np.isfinite(adapted).all(1)
        if not usable.all():
            adapted = np.where(usable[:, None], adapted, 0.0)
            batch = batch._replace(
                forward=batch.forward._replace(logits=np.where(usable[:, None], batch.forward.logits, 0.0))
            )
        measured = self._dropout(batch.forward, adapted) or (None, None)
        rows, sketch = Rows.of(batch.forward.logits, adapted, *measured), self._sketch(batch.forward)
        end = 0
        for job, answer in zip(batch.jobs, batch.answers, strict=True):
            part = np.arange(end, end + len(job.images))
            end += len(job.images)
            part = part[usable[part]]
            view = self._view(job.camera)
            with self._lock:
                view.figures.add(rows.part(part))
                view.seen += len(part)
                view.learnt += len(part) * answer.learnt
                self.version += 1
                view.version, view.last = self.version, time.monotonic()
            if view.detector.observe(sketch[part]):
                self._alarm(job.camera, view, "change", "what the camera shows has changed")
            if self._settings.images:
                view.images.extend(_pictures(job, self._engine, self._settings.images))

    def _view(self, camera: str) -> View:
        with self._lock:
            view = self._views.get(camera)
            if view is None:
                view = self._views[camera] = View(self._engine.classes, self._settings.images)
                while len(self._views) > VIEWS:
                    self._views.popitem(last=False)
            self._views.move_to_end(camera)
            return view

    # ---- now and then

    def tick(self) -> None:
        """Add points to the histories of cameras that were active, and take snapshots."""
        with self._lock:
            active = {camera: view for camera, view in self._views.items() if view.seen != view.ticked}
        for view in active.values():
            view.ticked = view.seen
        self._records.add_points({camera: self._point(camera) for camera in active})
        for camera, view in active.items():
            if time.monotonic() - view.snapshot_taken >= self._settings.snapshots:
                self.snapshot(camera)

    def _point(self, camera: str) -> dict[str, Any]:
        figures = self.summary(camera)
        return {name: figures[name] for name in figures if name not in ("id", "name", "frozen", "version", "status")}

    def snapshot(self, camera: str) -> bool:
        """Keep a copy of a camera's state; whether there was anything to keep."""
        state = self._engine.snapshot(camera)
        if state is None:
            return False
        self._records.add_snapshot(camera, state)
        self._view(camera).snapshot_taken = time.monotonic()
        return True

    def _alarm(self, camera: str, view: View, kind: str, reason: str) -> None:
        with self._lock:
            view.alarms += 1
            self.version += 1
            view.version, view.alarmed = self.version, time.monotonic()
        about = {"kind": kind, "reason": reason, "samples": view.seen}
        log("warning", camera=camera, **about)
        try:
            self._records.add_alarm(camera, about)
        except NeottaError as error:
            log("error", error=type(error).__name__, message=str(error))

    # ---- reading

    def renew(self, camera: str) -> None:
        """Reset the figures of a camera, after its state was changed by hand."""
        view = self._view(camera)
        with self._lock:
            view.figures = Figures(self._engine.classes)
            self.version += 1
            view.version = self.version

    def touch(self, camera: str) -> None:
        """Let the dashboard show a camera again."""
        view = self._view(camera)
        with self._lock:
            self.version += 1
            view.version = self.version

    def drop(self, camera: str) -> None:
        """Forget a camera's figures."""
        with self._lock:
            self._views.pop(camera, None)
            self.version += 1

    def changed(self, since: int) -> list[str]:
        """Cameras that changed after a version."""
        with self._lock:
            return [camera for camera, view in self._views.items() if view.version > since]

    def figures(self, camera: str) -> Figures:
        """The last samples of a camera."""
        with self._lock:
            view = self._views.get(camera)
            return Figures(self._engine.classes) if view is None else view.figures

    def images(self, camera: str) -> list[bytes]:
        """The last images of a camera as JPEG files."""
        with self._lock:
            view = self._views.get(camera)
            return [] if view is None or not self._settings.images else list(view.images)

    def totals(self, camera: str) -> dict[str, int]:
        """The counters of a camera."""
        with self._lock:
            view = self._views.get(camera)
            return {
                "seen": 0 if view is None else view.seen,
                "learnt": 0 if view is None else view.learnt,
                "alarms": 0 if view is None else view.alarms,
            }

    def summary(self, camera: str) -> dict[str, Any]:
        """A camera at a glance."""
        record = self._records.camera(camera)
        with self._lock:
            view = self._views.get(camera)
            figures = Figures(self._engine.classes) if view is None else view.figures
            rows = figures.recent().copy()
            by_name = estimates(rows, self._engine.classes, self.threshold)
            chosen = best(by_name)
            return {
                "id": camera,
                "name": record.name,
                "frozen": record.frozen,
                "status": _status(view, record.frozen),
                "version": 0 if view is None else view.version,
                **self.totals(camera),
                "evidence": 0.0 if view is None else view.detector.evidence,
                **figures.summary(),
                "accuracy": None if chosen is None else chosen._asdict(),
                "estimates": {name: each.accuracy for name, each in by_name.items()},
            }


def _status(view: View | None, frozen: bool) -> str:
    """One word for the state of a camera."""
    if frozen:
        return "frozen"
    if view is None:
        return "quiet"
    return "changed" if time.monotonic() - view.alarmed < RECENT else "calm"


def _pictures(job: Job, engine: Engine, most: int) -> list[bytes]:
    """The last images of a job as small JPEG files."""
    if job.pixels:
        pixels = [np.asarray(each) for each in job.pixels[-most:]]
    else:
        mean, std = (
            np.array(each, np.float32).reshape(3, 1, 1) for each in (engine.preprocess.mean, engine.preprocess.std)
        )
        scaled = (job.images[-most:] * std + mean).clip(0, 1) * 255
        pixels = list(scaled.round().astype(np.uint8).transpose(0, 2, 3, 1))
    images = []
    for each in pixels:
        image, buffer = Image.fromarray(each), io.BytesIO()
        image.thumbnail((224, 224))
        image.save(buffer, "JPEG", quality=80)
        images.append(buffer.getvalue())
    return images

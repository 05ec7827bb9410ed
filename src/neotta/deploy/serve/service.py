"""Everything behind the routes: the model, its streams and their health, and the queue of requests."""

from __future__ import annotations

import asyncio
import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from neotta.deploy.serve.auth import Keys
from neotta.deploy.serve.board import Board, Metrics
from neotta.deploy.serve.engine import Engine
from neotta.deploy.serve.fair import Answer, Batcher, Job
from neotta.deploy.serve.history import History
from neotta.deploy.serve.images import Images
from neotta.deploy.serve.judging import CAMERAS, Shown
from neotta.deploy.serve.settings import RequestError, Settings
from neotta.errors import NeottaError, StateError, StorageError
from neotta.evaluate.judgement import readable_names
from neotta.monitoring.accuracy import Estimate, Recent
from neotta.monitoring.health import Health
from neotta.report.judge_page import Reply

Result = TypeVar("Result")
# Signs that somebody should look at.
LOOK = {"rejected", "alike", "dominated", "one-answer", "repeats", "differs", "changed"}
REFRESHED = 64  # streams whose health is computed again in a second, at most
log = logging.getLogger("neotta.serve")


class Stream:
    """What a server knows of a stream beside its state."""

    def __init__(self, classes: int) -> None:
        self.health: Health | None = None  # None before its first image
        self.accuracy: Estimate | None = None
        self.error = ""  # why it is quarantined
        self.images = 0  # answered since the server started
        self.changed = 0.0  # by time.monotonic(), when what is shown of it was last computed
        self.seen: float | None = None  # time of the last image
        self.picture: bytes | None = None  # the last one as a small JPEG file, if pictures are kept
        self.recent = Recent(classes)
        self.refreshed, self.pointed = -1, 0  # images at the last refresh, and at the last point of the history
        self.snapshot_due = 0.0  # by time.monotonic()


class Service:
    """A model that is served."""

    def __init__(self, engine: Engine, settings: Settings, history: History | None = None) -> None:
        self.engine, self.settings = engine, settings
        self.history = History() if history is None else history
        self.images = Images(engine.preprocess, settings.limits)
        # All streams that are known: those that learnt. Others are answered and not remembered.
        self.streams = {stream: Stream(engine.classes) for stream in (*engine.counts(), *self.history.frozen)}
        self.shown: dict[str, Shown] = {}  # what can be judged, of some streams
        self.names = readable_names(engine.labels, engine.classes)
        self.metrics = Metrics(self)
        self.batcher = Batcher(self.run, settings.limits)
        self.call = self.batcher.call
        self.keys = Keys(settings.key, settings.key_file)
        self.board = Board(self)
        self.writable = True  # whether the last write succeeded
        self.ending = False  # set when the server is told to end
        self._tasks: list[asyncio.Task[None]] = []

    # ---- starting and ending

    async def start(self) -> None:
        every = [(1.0, self.refresh), (self.settings.history, self.record)]
        if self.settings.durable:  # half of it, so that nothing is older even if this waits for a batch
            every.append((self.settings.durable / 2, self.engine.flush))
        self._tasks = [asyncio.create_task(self._repeat(*each)) for each in every]
        if threading.current_thread() is threading.main_thread() and hasattr(signal, "SIGHUP"):
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self.keys.reread)
        log.info("started", extra={"values": {"model": self.settings.name, "streams": len(self.streams)}})

    async def _repeat(self, seconds: float, work: Callable[[], bool | None]) -> None:
        """Do something every so many seconds, and again while it says that there is more: clients go in between."""
        while True:
            await asyncio.sleep(seconds)
            try:
                while await self.call(work):
                    pass
            except Exception as error:
                self.writable = self.writable and not isinstance(error, StorageError)
                log.error("%s (tried again later)", error)

    async def close(self) -> None:
        """Answer what was accepted, and write what was learnt."""
        self.ending = True
        for task in self._tasks:
            task.cancel()
        await self.batcher.close()
        try:
            await self.call(self.engine.flush)
            while await self.call(self.record):
                pass
        finally:
            self.batcher.shutdown()
        self.images.readers.shutdown()
        self.engine.close()
        self.history.close()
        log.info("stopped")

    @property
    def ready(self) -> bool:
        """Whether requests are answered: not while it ends, on a full disk, or if the model's thread is stuck."""
        since = self.batcher.busy_since
        stuck = since is not None and time.monotonic() - since > self.settings.limits.timeout
        return self.writable and not (stuck or self.ending or self.batcher.closing)

    def known(self, name: str) -> Stream:
        stream = self.streams.get(name)
        if stream is None:
            raise RequestError(404, f"there is no stream {name[:100]!r}")
        return stream

    # ---- answering

    async def answer(self, job: Job, client: str = "") -> Answer:
        known, most = self.streams.get(job.stream), self.settings.limits.streams
        if known is not None and known.error:
            raise RequestError(409, known.error)
        if known is None and job.adapt and self.engine.adapts and len(self.streams) >= most:
            raise RequestError(403, f"{most:,} streams are known, the limit: forget one, or send adapt=false")
        answer = await self.batcher.submit(job, client)
        if not (np.isfinite(answer.plain).all() and np.isfinite(answer.adapted).all()):
            raise RequestError(422, "the model has no finite answer to these images: their values are too large")
        return answer

    def run(self, jobs: Sequence[Job]) -> list[Answer | Exception]:
        """Answer a batch, in the thread that owns the model; a batch that fails is repeated job by job."""
        try:
            answers: list[Answer | Exception] = [*self._predicted(jobs)]
        except Exception:
            answers = [self._alone(job) for job in jobs]
        if not self.settings.durable:  # what was taught is on disk when this returns
            try:
                self.engine.flush()
            except NeottaError as error:
                self.engine.undo()
                self.writable = False
                answers = [error if isinstance(each, Answer) and each.learnt.any() else each for each in answers]
        for job, answer in zip(jobs, answers, strict=True):
            if isinstance(answer, Answer):
                self._observe(job, answer)
        return answers

    def _alone(self, job: Job) -> Answer | Exception:
        try:
            return self._predicted([job])[0]
        except StateError as error:
            return RequestError(409, self._quarantine(job.stream, error))
        except Exception as error:
            log.exception("a request failed")
            return error

    def _predicted(self, jobs: Sequence[Job]) -> list[Answer]:
        images = jobs[0].images if len(jobs) == 1 else np.concatenate([job.images for job in jobs])
        counts = [len(job.images) for job in jobs]
        learns = [job.adapt and self.engine.adapts and job.stream not in self.history.frozen for job in jobs]
        ids = [job.stream for job in jobs for _ in job.images]
        found = self.engine.predict(images, ids, np.repeat(learns, counts))
        parts = [slice(end - count, end) for count, end in zip(counts, np.cumsum(counts), strict=True)]
        return [Answer(*(values[part] for values in found)) for part in parts]

    # ---- watching, in the thread that owns the model

    def _observe(self, job: Job, answer: Answer) -> None:
        if answer.learnt.any() or job.stream in self.streams:
            stream = self.streams.setdefault(job.stream, Stream(self.engine.classes))
            finite = np.isfinite(answer.adapted).all(1)
            stream.recent.add(answer.adapted[finite], answer.stable[finite])
            stream.images, stream.seen = stream.images + len(job.images), time.time()
            if self.settings.pictures:
                stream.picture = self.images.thumbnail(job.images[-1])
                if job.stream in self.shown or len(self.shown) < CAMERAS:
                    plain, adapted = (self.names[logits[-1].argmax()] for logits in (answer.plain, answer.adapted))
                    self.shown.setdefault(job.stream, Shown()).add(plain, adapted, stream.picture)

    def _quarantine(self, name: str, error: StateError) -> str:
        """Answer no more requests of a stream whose state cannot be read, until it is reset."""
        stream = self.streams.setdefault(name, Stream(self.engine.classes))
        stream.error = f"stream {name!r} is quarantined: its stored state cannot be read, and a reset heals it"
        log.error("%s (%s)", stream.error, error)
        stream.changed = time.monotonic()
        return stream.error

    def _read(self, name: str, read: Callable[[str], Result]) -> Result | None:
        """Read something of a stream's state; None if it cannot be read."""
        if self.streams[name].error:
            return None
        try:
            return read(name)
        except StateError as error:
            self._quarantine(name, error)
            return None

    def _health(self, name: str) -> Health | None:
        """The health of a stream; its last answers count beside its state."""
        health, recent = self._read(name, self.engine.health), self.streams[name].recent
        if health is None or not recent.one_answer or "one-answer" in health.signs:
            return health
        remark = "most of the last answers are one class, as after a collapse"
        return replace(health, remarks=(*health.remarks, remark), signs=(*health.signs, "one-answer"))

    def refresh(self) -> None:
        """Compute the health of streams that were active, those first that were not refreshed for longest."""
        if not self.writable:
            self.history.check_room()
            self.writable = True
        active = [item for item in [*self.streams.items()] if item[1].images != item[1].refreshed and not item[1].error]
        for name, stream in sorted(active, key=lambda item: item[1].changed)[:REFRESHED]:
            stream.refreshed = stream.images
            stream.health = self._health(name)
            stream.accuracy = stream.recent.estimate()
            if stream.health is not None and "one-answer" in stream.health.signs and not stream.accuracy.reason:
                reason = "the rule takes most samples for one class, as after a collapse"
                stream.accuracy = Estimate(math.nan, math.nan, math.nan, "", reason)
            stream.changed = time.monotonic()

    def record(self) -> bool:
        """Add points to the histories of some streams that were active, and take snapshots; whether there are more."""
        self.refresh()
        active = [item for item in [*self.streams.items()] if item[1].images != item[1].pointed]
        some = dict(active[:REFRESHED])
        self.history.add_points({name: self._point(name, stream) for name, stream in some.items()})
        now = time.monotonic()
        for stream in some.values():
            stream.pointed = stream.images
        self.snapshot(*(name for name, stream in some.items() if now >= stream.snapshot_due))
        return len(active) > len(some)

    def _point(self, name: str, stream: Stream) -> dict[str, Any]:
        about = self.summary(name, stream)
        health = about["health"] or {}
        figures = {each: health.get(each) for each in ("signs", "samples", "changed", "shift", "top_share")}
        return {"status": about["status"], **figures, "accuracy": about["accuracy"]}

    def summary(self, name: str, stream: Stream) -> dict[str, Any]:
        health = None if stream.health is None else _finite(vars(stream.health))
        verdict = "starting" if stream.health is None else stream.health.verdict
        status = "quarantined" if stream.error else "frozen" if name in self.history.frozen else verdict
        look = LOOK.intersection(() if stream.health is None else stream.health.signs) or stream.recent.one_answer
        trouble = 3 if stream.error else 2 if look else 1 if status in ("frozen", "idle") else 0
        return {
            "id": name,
            "status": status,
            "trouble": trouble,
            "error": stream.error or None,
            "health": health,
            "accuracy": None if stream.accuracy is None else _finite(stream.accuracy._asdict()),
            "judged": self.history.judged.get(name),
            "images": stream.images,
            "seen": stream.seen,
            "picture": stream.picture is not None,
        }

    def detail(self, name: str) -> dict[str, Any]:
        """A stream with what is subtracted, its history and its snapshots."""
        stream, offset = self.known(name), None
        stream.health = self._health(name)
        if stream.health is not None:
            values = self.engine.offset(name)
            largest = np.argsort(-np.abs(values))[:10]
            offset = [{"label": self.engine.labels[place], "offset": float(values[place])} for place in largest]
        rest = {"offset": offset, "history": self.history.points(name), "snapshots": self.history.snapshots(name)}
        return {**self.summary(name, stream), **rest}

    def exported(self, name: str) -> bytes:
        """The state of a stream as a file that `neotta.load` takes."""
        stream, state = self.known(name), self._read(name, self.engine.snapshot)
        if state is None:
            raise RequestError(404, stream.error or "nothing was learnt of this stream yet")
        return state.to_bytes()

    def judge(self, name: str, method: str, part: str, body: bytes) -> Reply:
        """Answer a request of the page on which answers of a stream are judged."""
        stream, shown = self.known(name), self.shown.get(name)
        if shown is None:
            raise RequestError(404, "no pictures of this stream are kept: switch them on with pictures = true")

        def changed() -> None:
            self.history.judge(name, shown.measured())
            stream.changed = time.monotonic()

        return shown.reply(method, part, body, self.engine.rule, changed)

    # ---- acting on streams, in the thread that owns the model

    def snapshot(self, *names: str) -> None:
        """Keep copies of the states of streams, of those that can be read."""
        states = {name: self._read(name, self.engine.snapshot) for name in names}
        self.history.add_snapshots({name: state for name, state in states.items() if state is not None})
        for name in names:
            self.streams[name].snapshot_due = time.monotonic() + self.settings.snapshots

    def act(self, name: str, action: str, to: float | None = None) -> dict[str, Any]:
        """Freeze, unfreeze, reset or roll back a stream, and describe it."""
        stream, more = self.known(name), {}
        if action in ("freeze", "unfreeze"):
            self.history.freeze(name, action == "freeze")
        elif action == "reset":
            self.snapshot(name)
            self.engine.reset(name)
        else:
            found = self.history.snapshot(name, math.inf if to is None else to)
            if found is None:
                raise RequestError(404, "there is no snapshot of this stream from before that time")
            self.snapshot(name)
            self.engine.restore(name, found[1])
            more = {"restored": found[0]}
        if action in ("reset", "rollback"):
            stream.error, stream.recent, stream.accuracy = "", Recent(self.engine.classes), None
        stream.health = self._health(name)
        stream.changed = time.monotonic()
        log.info(action, extra={"values": {"stream": name}})
        return {**self.summary(name, stream), **more}

    def forget(self, name: str) -> dict[str, Any]:
        """Delete everything about a stream."""
        self.known(name)
        self.engine.reset(name)
        self.history.forget(name)
        del self.streams[name]
        self.shown.pop(name, None)
        log.info("forgotten", extra={"values": {"stream": name}})
        return {"id": name, "forgotten": True}


def _finite(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Figures for JSON, which has no NaN."""
    return {name: None if value != value else value for name, value in figures.items()}

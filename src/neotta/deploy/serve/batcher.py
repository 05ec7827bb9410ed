"""Joins the requests of all cameras into batches, in order of arrival, and runs them in one thread."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from neotta.deploy.serve.classifier import Answer, Classifier, Job
from neotta.deploy.serve.guard import RequestError
from neotta.deploy.serve.logs import log
from neotta.deploy.serve.settings import Limits

Result = TypeVar("Result")


class _Waiting(NamedTuple):
    job: Job
    answer: asyncio.Future[Answer]
    since: float


class Batcher:
    """A bounded queue of jobs, and the thread that owns the model.

    A batch starts when it is full, or when its oldest job has waited long enough. Jobs keep their order, so those of
    one camera do, too. A job whose client has gone is left out, as long as it has not started.

    Args:
        classifier: What answers a batch.
        limits: Rows of a batch, waiting time, and length of the queue.
    """

    def __init__(self, classifier: Classifier, limits: Limits) -> None:
        self.classifier, self.limits = classifier, limits
        self.rows = self.batches = 0
        self._queue: deque[_Waiting] = deque()
        self._rows = 0  # of all jobs in the queue
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="neotta-model")
        self.closing = False
        self._seconds_per_row = 0.0
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to answer; in the event loop."""
        self._tasks = [asyncio.create_task(self._serve())]
        if self.classifier.durable:
            self._tasks.append(asyncio.create_task(self._flush_now_and_then()))

    @property
    def waiting(self) -> int:
        """Number of images that wait."""
        return self._rows

    async def submit(self, job: Job) -> Answer:
        """Answer a job with others."""
        if self.closing:
            raise RequestError(503, "the server is shutting down: try another one", {"Retry-After": "1"})
        if self._queue and self._rows + len(job.images) > self.limits.queue:
            seconds = max(1, math.ceil(self._seconds_per_row * self._rows))
            headers = {"Retry-After": str(seconds)}
            raise RequestError(429, f"{self._rows} images are waiting already: try later", headers)
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._queue.append(_Waiting(job, answer, time.monotonic()))
        self._rows += len(job.images)
        if len(self._queue) == 1 or self._rows >= self.limits.rows:
            self._arrived.set()  # something to do, or a full batch
        try:
            return await asyncio.wait_for(answer, self.limits.timeout)
        except asyncio.TimeoutError:
            raise RequestError(
                504, f"no answer within {self.limits.timeout:g} seconds: the server has too much to do"
            ) from None

    async def call(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Run something in the thread that owns the model, between two batches."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    async def close(self) -> None:
        """Answer what was accepted, write what was learnt, and end."""
        self.closing = True
        self._arrived.set()
        if self._tasks:
            await self._tasks[0]
            for task in self._tasks[1:]:
                task.cancel()
        try:
            await self.call(self.classifier.flush)
        finally:
            self._thread.shutdown()

    async def _serve(self) -> None:
        while True:
            while not self._queue:
                if self.closing:
                    return
                self._arrived.clear()
                await self._arrived.wait()
            await self._gather()
            batch = self._next_batch()
            if batch:
                await self._run(batch)

    async def _gather(self) -> None:
        """Wait for more jobs until the batch is full or its oldest job has waited long enough."""
        until = self._queue[0].since + self.limits.wait
        while not self.closing and self._rows < self.limits.rows:
            left = until - time.monotonic()
            if left <= 0:
                return
            self._arrived.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._arrived.wait(), left)

    def _next_batch(self) -> list[_Waiting]:
        """Take jobs from the queue, in order, as many as fit."""
        batch: list[_Waiting] = []
        rows = 0
        while self._queue:
            first = self._queue[0]
            gone = first.answer.done()  # its client has left, or waited too long
            if not gone and batch and rows + len(first.job.images) > self.limits.rows:
                break
            self._queue.popleft()
            self._rows -= len(first.job.images)
            if not gone:
                rows += len(first.job.images)
                batch.append(first)
        return batch

    async def _run(self, batch: list[_Waiting]) -> None:
        started, rows = time.monotonic(), sum(len(each.job.images) for each in batch)
        try:
            answers = await self.call(self.classifier.run, [each.job for each in batch])
        except Exception as error:
            for each in batch:
                if not each.answer.done():
                    each.answer.set_exception(error)
            return
        self.rows, self.batches = self.rows + rows, self.batches + 1
        taken = (time.monotonic() - started) / max(rows, 1)
        self._seconds_per_row = 0.9 * self._seconds_per_row + 0.1 * taken if self._seconds_per_row else taken
        for each, answer in zip(batch, answers, strict=True):
            if not each.answer.done():
                each.answer.set_result(answer)

    async def _flush_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(self.classifier.durable / 2)  # so that nothing is older than that, even if this waits
            try:
                await self.call(self.classifier.flush)
            except Exception as error:
                log("error", error=type(error).__name__, message=f"{error} (kept, and tried again)")

"""Joins the requests of all streams into batches, and runs them in one thread."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from neotta.deploy.serve.fair import FairQueue, Waiting
from neotta.deploy.serve.settings import Limits, RequestError
from neotta.neo.statefile import Array

Result = TypeVar("Result")


class Job(NamedTuple):
    """Images of one stream that belong together."""

    images: Array  # preprocessed, (n, 3, H, W) float32
    stream: str
    adapt: bool = True
    picture: Array | None = None  # the last image before preprocessing, (H, W, 3) uint8, if it is known


class Answer(NamedTuple):
    """What is said of a job."""

    plain: Array  # logits of the plain model, (n, C)
    adapted: Array  # logits of the adapted model, (n, C)
    learnt: bool  # whether it was learnt from
    stable: Array  # how stable each answer is, (n,)


class Batcher:
    """A bounded queue of jobs, and the thread that owns the model.

    A batch starts when it is full, or when its first job has waited long enough. Clients and streams take turns; the
    jobs of one stream keep their order. A job whose client has gone is left out, as long as it has not started.
    """

    def __init__(self, run: Callable[[Sequence[Job]], Sequence[Answer | Exception]], limits: Limits) -> None:
        self.run, self.limits = run, limits
        self.rows = self.batches = 0
        self.queue: FairQueue[Job] = FairQueue(limits.queue, "images")
        self.closing = False
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="neotta-model")
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._serve())

    async def submit(self, job: Job, client: str = "") -> Answer:
        if self.closing:
            raise RequestError(503, "the server is shutting down: try another one", {"Retry-After": "1"})
        entry = self.queue.add(job, (client, job.stream), len(job.images))
        if self.queue.amount == entry.amount or self.queue.amount >= self.limits.rows:
            self._arrived.set()  # something to do, or a full batch
        answer: Answer = await self.queue.outcome(entry)
        return answer

    async def call(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Run something in the thread that owns the model, between two batches."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    async def close(self) -> None:
        """Answer what was accepted, and end; `call` works until `shutdown`."""
        self.closing = True
        self._arrived.set()
        if self._task is not None:
            await self._task

    def shutdown(self) -> None:
        self._thread.shutdown()

    async def _serve(self) -> None:
        while not self.closing or self.queue.amount:
            first = self.queue.first()
            until = 0.0 if first is None else first.since + self.limits.wait - time.monotonic()
            if not self.closing and (first is None or (self.queue.amount < self.limits.rows and until > 0)):
                self._arrived.clear()
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._arrived.wait(), until or None)
            else:
                await self._run(self._next_batch())

    def _next_batch(self) -> list[Waiting[Job]]:
        batch: list[Waiting[Job]] = []
        rows = 0
        while (entry := self.queue.first()) and (not batch or rows + entry.amount <= self.limits.rows):
            batch.append(self.queue.take())
            rows += entry.amount
        return batch

    async def _run(self, batch: list[Waiting[Job]]) -> None:
        try:
            answers = await self.call(self.run, [entry.item for entry in batch])
        except Exception as error:
            answers = [error] * len(batch)
        self.rows, self.batches = self.rows + sum(entry.amount for entry in batch), self.batches + 1
        for entry, answer in zip(batch, answers, strict=True):
            entry.settle(answer)

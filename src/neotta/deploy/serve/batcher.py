"""Joins the requests of all streams into batches, and runs them and all else about the model in one thread."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeVar

from neotta.deploy.serve.fair import FairQueue, Owner, Waiting
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
    """The thread that owns the model, and the bounded queue of what it has to do: jobs, and calls between them.

    A batch starts when it is full, or when its first job has waited long enough. Clients and streams take turns; what
    concerns one stream keeps its order. Whatever a client has left is dropped, as long as it has not started.
    """

    def __init__(self, run: Callable[[Sequence[Job]], Sequence[Answer | Exception]], limits: Limits) -> None:
        self.run, self.limits = run, limits
        self.rows = self.batches = 0
        self.queue: FairQueue[Job | Callable[[], Any]] = FairQueue(limits.queue, "images")
        self.closing = False
        self.busy_since: float | None = None  # by time.monotonic(), while the thread works
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

    async def call(self, work: Callable[..., Result], *arguments: Any, owner: Owner | None = None) -> Result:
        """Run something in the thread that owns the model, in the turn of a client, or of the server itself."""
        item = partial(work, *arguments)
        if self._task is None or self._task.done():
            return await asyncio.get_running_loop().run_in_executor(self._thread, item)
        entry = self.queue.add(item, owner or ("", ""), 0 if owner is None else 1)
        self._arrived.set()
        result: Result = await self.queue.outcome(entry)
        return result

    async def close(self) -> None:
        """Answer what was accepted, and end; `call` works until `shutdown`."""
        self.closing = True
        self._arrived.set()
        if self._task is not None:
            await self._task

    def shutdown(self) -> None:
        self._thread.shutdown()

    async def _serve(self) -> None:
        while (first := self.queue.first()) or not self.closing:
            until = 0.0 if first is None else first.since + self.limits.wait - time.monotonic()
            joins = first is not None and isinstance(first.item, Job) and self.queue.amount < self.limits.rows
            if not self.closing and (first is None or (joins and until > 0)):
                self._arrived.clear()
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._arrived.wait(), until or None)
            else:
                await self._run(self._next_batch())

    def _next_batch(self) -> list[Waiting[Any]]:
        """A call, or the jobs whose turn it is until the batch is full."""
        batch: list[Waiting[Any]] = []
        rows = 0
        while (entry := self.queue.first()) and (not batch or rows + entry.amount <= self.limits.rows):
            if batch and not isinstance(entry.item, Job):
                break
            self.queue.take(entry)
            batch.append(entry)
            rows += entry.amount
            if not isinstance(entry.item, Job):
                break
        return batch

    async def _run(self, batch: list[Waiting[Any]]) -> None:
        items = [entry.item for entry in batch]
        jobs = isinstance(items[0], Job)
        self.busy_since = time.monotonic()
        try:
            work = partial(self.run, items) if jobs else lambda: [items[0]()]
            answers = await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except Exception as error:
            answers = [error] * len(batch)
        self.busy_since = None
        if jobs:
            self.rows, self.batches = self.rows + sum(entry.amount for entry in batch), self.batches + 1
        for entry, answer in zip(batch, answers, strict=True):
            entry.settle(answer)

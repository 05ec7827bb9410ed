"""Joins the requests of all streams into batches, and runs them and all else about the model in one thread."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from neotta.deploy.serve.fair import FairQueue, Owner, Waiting, Workers
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


class Batcher(Workers[Job | Callable[[], Any]]):
    """The thread that owns the model, and the bounded queue of what it has to do: jobs, and calls between them.

    A batch starts when it is full, or when its first job has waited long enough. Clients and streams take turns; what
    concerns one stream keeps its order.
    """

    def __init__(self, answer: Callable[[Sequence[Job]], Sequence[Answer | Exception]], limits: Limits) -> None:
        super().__init__(FairQueue(limits.queue, "images"), 1, "model")
        self.answer, self.limits = answer, limits
        self.rows = self.batches = 0
        self.closing = False
        self.busy_since: float | None = None  # by time.monotonic(), while the thread works

    async def submit(self, job: Job, client: str = "") -> Answer:
        if self.closing:
            raise RequestError(503, "the server is shutting down: try another one", {"Retry-After": "1"})
        answer: Answer = await self.run(job, (client, job.stream), len(job.images))
        return answer

    async def call(self, work: Callable[..., Result], *arguments: Any, owner: Owner | None = None) -> Result:
        """Run something in the thread that owns the model, in the turn of a client, or of the server itself."""
        result: Result = await self.run(partial(work, *arguments), owner or ("", ""), 0 if owner is None else 1)
        return result

    async def close(self) -> None:
        """Answer what was accepted; `call` works until `shutdown`."""
        self.closing = True
        self.start()
        while self.running:
            await asyncio.sleep(0.005)

    def _next(self) -> list[Waiting[Job | Callable[[], Any]]]:
        """A call, or the jobs whose turn it is until the batch is full; nothing yet if others may join them."""
        first = self.queue.first()
        if first is None:
            return []
        if isinstance(first.item, Job) and self.queue.amount < self.limits.rows and not self.closing:
            left = first.since + self.limits.wait - time.monotonic()
            if left > 0:
                asyncio.get_running_loop().call_later(left, self.start)
                return []
        batch = [self.queue.take(first)]
        rows = first.amount
        while isinstance(batch[0].item, Job) and (entry := self.queue.first()) and isinstance(entry.item, Job):
            rows += entry.amount
            if rows > self.limits.rows:
                break
            batch.append(self.queue.take(entry))
        return batch

    def _do(self, items: list[Any]) -> Sequence[Any]:
        self.busy_since = time.monotonic()
        try:
            if not isinstance(items[0], Job):
                return super()._do(items)
            self.rows, self.batches = self.rows + sum(len(job.images) for job in items), self.batches + 1
            return self.answer(items)
        finally:
            self.busy_since = None

"""A bounded queue in which clients, and the streams of each client, take turns; and the threads that work by it.

Some read what clients sent; one owns the model, and joins the requests of all streams into batches.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from neotta.deploy.serve.settings import Limits, RequestError
from neotta.neo.statefile import Array

Item = TypeVar("Item")
Result = TypeVar("Result")
Owner = tuple[str, str]  # the client, and the id of the stream
THREADS = 3
SMALL = 64 * 1024  # bytes that are worked on at once, in the event loop


@dataclass(eq=False)
class Waiting(Generic[Item]):
    """Something that waits: how much of the queue it takes, and what will come of it."""

    item: Item
    owner: Owner
    amount: int
    result: asyncio.Future[Any]
    since: float = field(default_factory=time.monotonic)

    def settle(self, outcome: Any) -> None:
        """Hand over a result or an error, unless the client has gone."""
        if self.result.done():
            return
        if isinstance(outcome, Exception):
            self.result.set_exception(outcome)
        else:
            self.result.set_result(outcome)


class FairQueue(Generic[Item]):
    """What waits, by client and stream; at most so much, in units of `amount`, unless it is one large entry.

    If it is full, whoever holds most of it gives way: of the client, and of its stream, that hold most, the largest
    entry is rejected (429), the last if several are. So nobody can keep others out, neither with many requests nor
    with many streams.
    """

    def __init__(self, most: int, unit: str) -> None:
        self.most, self.unit, self.amount = most, unit, 0
        self._clients: OrderedDict[str, OrderedDict[str, deque[Waiting[Item]]]] = OrderedDict()

    def add(self, item: Item, owner: Owner, amount: int) -> Waiting[Item]:
        """Add an entry, unless the queue is full and nobody else holds more of it."""
        self._make_room(owner, amount)
        entry = Waiting(item, owner, amount, asyncio.get_running_loop().create_future())
        self._clients.setdefault(owner[0], OrderedDict()).setdefault(owner[1], deque()).append(entry)
        self.amount += amount
        return entry

    def _make_room(self, owner: Owner, more: int) -> None:
        while self.amount and self.amount + more > self.most:
            reason = f"{self.amount:,} {self.unit} are waiting already: try later"
            full = RequestError(429, reason, {"Retry-After": "1"})
            heaviest = self._heaviest(owner, more)
            last = max(reversed(heaviest), key=lambda entry: entry.amount) if heaviest else None
            if last is None or (last.owner == owner and last.amount <= more):
                raise full
            self.discard(last)
            last.settle(full)

    def _heaviest(self, owner: Owner, more: int) -> deque[Waiting[Item]]:
        """What the stream holds that would hold most, of the client that would."""
        held = {
            client: {stream: sum(entry.amount for entry in queue) for stream, queue in streams.items()}
            for client, streams in self._clients.items()
        }
        mine = held.setdefault(owner[0], {})
        mine[owner[1]] = mine.get(owner[1], 0) + more
        client = max(held, key=lambda each: (sum(held[each].values()), each == owner[0]))
        stream = max(held[client], key=lambda each: (held[client][each], (client, each) == owner))
        return self._clients.get(client, OrderedDict()).get(stream, deque())

    async def outcome(self, entry: Waiting[Item]) -> Any:
        """What comes of an entry; it leaves the queue if nobody waits for it any more."""
        try:
            return await entry.result
        finally:
            self.discard(entry)

    def first(self, may: Callable[[Waiting[Item]], bool] | None = None) -> Waiting[Item] | None:
        """The entry whose turn it is, of those that `may` start, without those whose client has gone."""
        for streams in [*self._clients.values()]:
            for queue in [*streams.values()]:
                while queue and queue[0].result.done():
                    self.discard(queue[0])
                if queue and (may is None or may(queue[0])):
                    return queue[0]
        return None

    def take(self, entry: Waiting[Item]) -> Waiting[Item]:
        """Remove an entry; its client and stream have their next turn after all others."""
        client, stream = entry.owner
        self._clients.move_to_end(client)
        self._clients[client].move_to_end(stream)
        self.discard(entry)
        return entry

    def discard(self, entry: Waiting[Item]) -> None:
        """Remove an entry, if it still waits."""
        client, stream = entry.owner
        streams = self._clients.get(client, OrderedDict())
        if entry not in streams.get(stream, ()):
            return
        streams[stream].remove(entry)
        self.amount -= entry.amount
        if not streams[stream]:
            del streams[stream]
        if not streams:
            del self._clients[client]


class Workers(Generic[Item]):
    """Threads that do what waits in a queue, by turns; nothing is done for a caller who is cancelled before."""

    def __init__(self, queue: FairQueue[Item], threads: int, name: str) -> None:
        self.queue, self._threads = queue, threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=f"neotta-{name}")
        self.running: list[list[Waiting[Item]]] = []

    async def run(self, item: Item, owner: Owner, amount: int) -> Any:
        """What comes of an item, in its turn."""
        entry = self.queue.add(item, owner, amount)
        self.start()
        return await self.queue.outcome(entry)

    def start(self) -> None:
        """Let free threads go on with what waits."""
        while len(self.running) < self._threads and (together := self._next()):
            self.running.append(together)
            asyncio.ensure_future(self._work(together)).add_done_callback(lambda _: self.start())

    def _next(self) -> list[Waiting[Item]]:
        """What is to be done now, taken from the queue."""
        raise NotImplementedError

    def _do(self, items: list[Item]) -> Sequence[Any]:
        return [item() for item in items]  # type: ignore[operator]

    async def _work(self, together: list[Waiting[Item]]) -> None:
        try:
            items = [entry.item for entry in together]
            outcomes = await asyncio.get_running_loop().run_in_executor(self._pool, self._do, items)
        except Exception as error:
            outcomes = [error] * len(together)
        self.running.remove(together)
        for entry, outcome in zip(together, outcomes, strict=True):
            entry.settle(outcome)

    def shutdown(self) -> None:
        self._pool.shutdown(cancel_futures=True)


class Readers(Workers[Callable[[], Any]]):
    """A few threads for all work on what clients sent but the model's, bounded by what waits.

    A stream has one thread at most and a client all but one, so that whoever comes next finds a free one. What is
    worked on together takes the memory of one and a half of the largest images.

    Args:
        largest: Most pixels of an image. Bytes count as pixels, which have three.
    """

    def __init__(self, largest: int) -> None:
        super().__init__(FairQueue(4 * largest, "pixels"), THREADS, "work")
        self.largest = largest

    async def read(self, work: Callable[[], Result], owner: Owner, size: int) -> Result:
        """Do something with so many bytes, in its turn; at once if they are few."""
        result: Result = work() if size <= SMALL else await self.run(work, owner, size // 3)
        return result

    def _next(self) -> list[Waiting[Callable[[], Any]]]:
        entry = self.queue.first(self._may)
        return [] if entry is None else [self.queue.take(entry)]

    def _may(self, entry: Waiting[Callable[[], Any]]) -> bool:
        busy = [each for (each,) in self.running]
        owners, together = [each.owner for each in busy], entry.amount + sum(each.amount for each in busy)
        alone = entry.owner not in owners and [client for client, _ in owners].count(entry.owner[0]) < THREADS - 1
        return alone and (not owners or together <= 1.5 * self.largest)


# ---- the model


class Job(NamedTuple):
    """Images of one stream that belong together."""

    images: Array  # preprocessed, (n, 3, H, W) float32
    stream: str
    adapt: bool = True


class Answer(NamedTuple):
    """What is said of images."""

    plain: Array  # logits of the plain model, (n, C) float32
    adapted: Array  # logits of the adapted model, (n, C) float32; the same where nothing adapts
    learnt: Array  # which were learnt from, (n,)
    stable: Array  # how stable each answer is (see `monitoring.accuracy`), (n,); NaN where it was not measured


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

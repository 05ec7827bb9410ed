"""A bounded queue in which clients, and the streams of each client, take turns."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from neotta.deploy.serve.settings import RequestError

Item = TypeVar("Item")
Owner = tuple[str, str]  # address of the client, id of the stream


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

    If it is full, whoever holds most of it gives way: the last entry of the client, and of its stream, that holds most
    is rejected (429). So nobody can keep others out, neither with many requests nor with many streams.
    """

    def __init__(self, most: int, unit: str) -> None:
        self.most, self.unit, self.amount = most, unit, 0
        self._clients: OrderedDict[str, OrderedDict[str, deque[Waiting[Item]]]] = OrderedDict()

    def add(self, item: Item, owner: Owner, amount: int) -> Waiting[Item]:
        """Add an entry, unless the queue is full and nobody else holds more of it."""
        while self.amount and self.amount + amount > self.most:
            last = self._heaviest(owner, amount)
            if last is None:
                raise self._full()
            self.discard(last)
            last.settle(self._full())
        entry = Waiting(item, owner, amount, asyncio.get_running_loop().create_future())
        self._clients.setdefault(owner[0], OrderedDict()).setdefault(owner[1], deque()).append(entry)
        self.amount += amount
        return entry

    def _full(self) -> RequestError:
        return RequestError(429, f"{self.amount:,} {self.unit} are waiting already: try later", {"Retry-After": "1"})

    def _heaviest(self, owner: Owner, amount: int) -> Waiting[Item] | None:
        """The last entry of whoever holds most; None if that were the owner of the new one."""
        held = {
            client: {stream: sum(entry.amount for entry in queue) for stream, queue in streams.items()}
            for client, streams in self._clients.items()
        }
        mine = held.setdefault(owner[0], {})
        mine[owner[1]] = mine.get(owner[1], 0) + amount
        client = max(held, key=lambda each: (sum(held[each].values()), each == owner[0]))
        stream = max(held[client], key=lambda each: (held[client][each], (client, each) == owner))
        return None if (client, stream) == owner else self._clients[client][stream][-1]

    async def outcome(self, entry: Waiting[Item]) -> Any:
        """What comes of an entry; it leaves the queue if nobody waits for it any more."""
        try:
            return await entry.result
        finally:
            self.discard(entry)

    def first(self) -> Waiting[Item] | None:
        """The entry whose turn it is, without those whose client has gone."""
        while self._clients:
            entry = next(iter(next(iter(self._clients.values())).values()))[0]
            if not entry.result.done():
                return entry
            self.discard(entry)
        return None

    def take(self) -> Waiting[Item]:
        """Remove the entry whose turn it is; its client and stream have their next turn after all others."""
        client, streams = next(iter(self._clients.items()))
        stream, queue = next(iter(streams.items()))
        entry = queue[0]
        self._clients.move_to_end(client)
        streams.move_to_end(stream)
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

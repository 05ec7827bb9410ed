"""What is shown of all streams: made once a second and after every action, for all who ask together."""

from __future__ import annotations

import asyncio
import json
import math
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from neotta._version import __version__
from neotta.deploy.serve.fair import Readers

if TYPE_CHECKING:
    from neotta.deploy.serve.service import Service, Stream

SHOWN = 1000  # most streams in one list
EVERY = 1.0  # seconds


class Shown(NamedTuple):
    """The server and its streams as JSON."""

    number: int  # grows by one
    everything: str  # those in trouble first
    changes: str  # those that changed since the last number
    quiet: bool  # whether none did


class Board:
    """The summaries of all streams. Only those of streams that changed are made again."""

    def __init__(self, service: Service, readers: Readers) -> None:
        self._service, self._readers = service, readers
        self._kept: dict[str, tuple[tuple[Stream, int, int], dict[str, Any], str]] = {}
        self._lock = asyncio.Lock()
        self._shown, self._made = Shown(0, "", "", True), -math.inf
        self._version = 0  # of the service, when it was made

    @property
    def summaries(self) -> list[dict[str, Any]]:
        return [summary for _, summary, _ in self._kept.values()]

    async def latest(self) -> Shown:
        async with self._lock:
            if time.monotonic() - self._made >= EVERY or self._version != self._service.version:
                await self._readers.run(self._make, ("", "board"), 1)
            return self._shown

    def _make(self) -> None:
        self._version = self._service.version
        before, after, changed = self._kept, dict[str, Any](), []
        for name, stream in [*self._service.streams.items()]:
            mark, kept = (stream, stream.version, stream.images), before.get(name)
            if kept is None or kept[0] != mark:
                summary = self._service.summary(name, stream)
                kept = mark, summary, json.dumps(summary)
                changed.append(kept[2])
            after[name] = kept
        self._kept = after
        first = sorted(after.values(), key=lambda each: (-each[1]["trouble"], each[1]["id"]))[:SHOWN]
        server, more = json.dumps(about(self._service)), max(0, len(after) - SHOWN)
        everything, changes = (
            f'{{"server": {server}, "streams": [{", ".join(texts)}], "more": {more}}}'
            for texts in ([text for _, _, text in first], changed[:SHOWN])
        )
        quiet = not changed and len(after) == len(before)
        self._shown = Shown(self._shown.number + 1, everything, changes, quiet)  # also if who asked has gone
        self._made = time.monotonic()


def about(service: Service) -> dict[str, Any]:
    return {
        "model": service.settings.name,
        "version": __version__,
        "rule": service.engine.rule,
        "shadow": service.settings.shadow,
        "classes": service.engine.classes,
        "streams": len(service.streams),
        "images": service.batcher.rows,
        "waiting": service.batcher.queue.amount,
        "uptime": time.monotonic() - service.started,
        "pictures": service.settings.pictures,
        "stored": service.engine.stored,
    }

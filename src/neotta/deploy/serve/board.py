"""What is shown of all streams: made once a second and after every action, for all who ask together."""

from __future__ import annotations

import asyncio
import json
import math
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from neotta._version import __version__
from neotta.deploy.serve.fair import Workers

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


class _Kept(NamedTuple):
    stream: Stream
    mark: tuple[int, int]
    summary: dict[str, Any]
    text: str


class Board:
    """The summaries of all streams. Only those of streams that changed are made again."""

    def __init__(self, service: Service, workers: Workers) -> None:
        self._service, self._workers = service, workers
        self._kept: dict[str, _Kept] = {}
        self._lock = asyncio.Lock()
        self._shown, self._made = Shown(0, "", "", True), -math.inf
        self._version = 0  # of the service, when it was made

    @property
    def summaries(self) -> list[dict[str, Any]]:
        return [kept.summary for kept in self._kept.values()]

    async def latest(self) -> Shown:
        async with self._lock:
            if time.monotonic() - self._made >= EVERY or self._version != self._service.version:
                version = self._service.version
                self._shown = await self._workers.run(self._make, ("", "board"), 1)
                self._made, self._version = time.monotonic(), version
            return self._shown

    def _make(self) -> Shown:
        before, after, changed = self._kept, dict[str, _Kept](), list[str]()
        for name, stream in [*self._service.streams.items()]:
            kept, mark = before.get(name), (stream.version, stream.images)
            if kept is None or kept.stream is not stream or kept.mark != mark:
                summary = self._service.summary(name, stream)
                kept = _Kept(stream, mark, summary, json.dumps(summary))
                changed.append(kept.text)
            after[name] = kept
        self._kept = after
        first = sorted(after.values(), key=lambda each: (-each.summary["trouble"], each.summary["id"]))[:SHOWN]
        server, more = json.dumps(about(self._service)), max(0, len(after) - SHOWN)
        everything, changes = (
            f'{{"server": {server}, "streams": [{", ".join(texts)}], "more": {more}}}'
            for texts in ([each.text for each in first], changed[:SHOWN])
        )
        quiet = not changed and len(after) == len(before)
        return Shown(self._shown.number + 1, everything, changes, quiet)


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

"""`/api/events`: what changes, live, as server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from neotta.deploy.serve.cameras import SHOWN, about
from neotta.deploy.serve.refusal import Refusal
from neotta.deploy.serve.service import Service

EVERY = 0.5
"""Seconds between two events."""

LISTENERS = 64
"""Most pages that listen at once."""


def routes(service: Service) -> list[Route]:
    """The route of live figures."""
    listening = 0

    async def events(request: Request) -> Response:
        if listening >= LISTENERS:
            raise Refusal(429, f"{LISTENERS} pages listen already", {"Retry-After": "10"})
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(stream(request), media_type="text/event-stream", headers=headers)

    async def stream(request: Request) -> AsyncIterator[str]:
        nonlocal listening
        listening += 1
        try:
            since = 0
            quiet = 0
            while not service.ending and not await request.is_disconnected():
                latest = service.watch.version
                changed = service.watch.changed(since)[:SHOWN] if latest != since else []
                quiet += 1
                if changed or since == 0 or quiet >= 10:  # now and then also if nothing changed: the line is alive
                    cameras = [service.watch.summary(camera) for camera in changed]
                    yield f"data: {json.dumps({'server': about(service), 'cameras': cameras})}\n\n"
                    quiet = 0
                since = max(latest, 1)
                await asyncio.sleep(EVERY)
        finally:
            listening -= 1

    return [Route("/api/events", events)]

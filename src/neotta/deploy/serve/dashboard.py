"""The dashboard's server side: its pages, live events, and metrics."""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from collections.abc import AsyncIterator
from importlib.resources import files

from fastapi import FastAPI, Request
from fastapi.responses import Response, StreamingResponse
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from neotta.deploy.serve.board import EVERY
from neotta.deploy.serve.requests import client_of
from neotta.deploy.serve.service import Service
from neotta.deploy.serve.settings import RequestError
from neotta.report.judge_page import page as judge_page

LISTENERS = 16  # most pages of one client that listen at once
KINDS = {"html": "text/html", "js": "text/javascript", "css": "text/css"}
POLICY = "default-src 'self'; img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
SAFE = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-cache"}


def add(app: FastAPI, service: Service) -> None:
    listeners: Counter[str] = Counter()

    @app.get("/streams")
    async def streams() -> Response:
        """All streams with their health, those in trouble first."""
        return Response((await service.board.latest()).everything, media_type="application/json")

    @app.get("/metrics")
    async def metrics(request: Request) -> Response:
        """Metrics for Prometheus."""
        await service.board.latest()
        work = functools.partial(generate_latest, service.metrics.registry)
        content = await service.images.readers.run(work, (client_of(request), "metrics"), 1)
        return Response(content, headers={"Content-Type": CONTENT_TYPE_LATEST})

    @app.get("/events")
    async def events(request: Request) -> StreamingResponse:
        """What streams report, as server-sent events."""
        client = client_of(request)
        if listeners[client] >= LISTENERS:
            raise RequestError(429, f"{LISTENERS} of your pages listen already", {"Retry-After": "10"})
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(lines(request, client), media_type="text/event-stream", headers=headers)

    async def lines(request: Request, client: str) -> AsyncIterator[str]:
        listeners[client] += 1
        try:
            number = -1
            while not service.ending and not await request.is_disconnected():
                shown = await service.board.latest()
                if shown.number > number:
                    yield f"data: {shown.changes if shown.number == number + 1 else shown.everything}\n\n"
                number = shown.number
                await asyncio.sleep(EVERY / 2)
        finally:
            listeners[client] -= 1
            if not listeners[client]:
                del listeners[client]

    @app.get("/", include_in_schema=False)
    @app.get("/camera/{stream:path}", include_in_schema=False)
    async def page() -> Response:
        return _file("index.html")

    @app.get("/judge/{stream:path}", include_in_schema=False)
    async def judge() -> Response:
        """The page on which answers of a camera are judged: what it shows needs the key."""
        reply = judge_page(["The images are the last ones of the camera's newest requests."], "/judgements/")
        return Response(reply.body, headers={**SAFE, **reply.headers}, media_type=reply.kind)

    @app.get("/static/{name}", include_in_schema=False)
    async def static(name: str) -> Response:
        return _file(name)


@functools.cache
def _static() -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in files("neotta.deploy.serve").joinpath("static").iterdir()}


def _file(name: str) -> Response:
    if name not in _static():
        raise RequestError(404, "there is no such file")
    headers = {"Content-Security-Policy": POLICY, **SAFE}
    return Response(_static()[name], media_type=KINDS[name.rpartition(".")[2]], headers=headers)

"""The dashboard's server side: its pages, its live events, and the OpenAPI page."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse, Response, StreamingResponse

from neotta._version import __version__
from neotta.deploy.serve.service import Service
from neotta.deploy.serve.settings import RequestError

SHOWN = 1000  # most streams in one list
EVERY = 0.5  # seconds between two events
LISTENERS = 64  # most pages that listen at once
KINDS = {"html": "text/html", "js": "text/javascript", "css": "text/css"}
STATIC = files("neotta.deploy.serve").joinpath("static")
POLICY = "default-src 'self'; img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


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


def everything(service: Service) -> dict[str, Any]:
    """The server and its streams, those in trouble first."""
    every = [service.summary(name) for name in [*service.streams] if name in service.streams]
    every.sort(key=lambda each: (-each["trouble"], each["id"]))
    return {"server": about(service), "streams": every[:SHOWN], "more": max(0, len(every) - SHOWN)}


def add(app: FastAPI, service: Service) -> None:
    listeners = 0

    @app.get("/events")
    async def events(request: Request) -> StreamingResponse:
        """What streams report, as server-sent events."""
        if listeners >= LISTENERS:
            raise RequestError(429, f"{LISTENERS} pages listen already", {"Retry-After": "10"})
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(lines(request), media_type="text/event-stream", headers=headers)

    async def lines(request: Request) -> AsyncIterator[str]:
        nonlocal listeners
        listeners += 1
        try:
            since = sent = -1.0
            while not service.ending and not await request.is_disconnected():
                latest, now = service.version, time.monotonic()
                changed = [name for name, each in [*service.streams.items()] if each.version > since][:SHOWN]
                if (changed and latest > since) or now - sent >= 5:  # now and then anyway: the line is alive
                    message = {"server": about(service), "streams": [service.summary(name) for name in changed]}
                    yield f"data: {json.dumps(message)}\n\n"
                    sent = now
                since = latest
                await asyncio.sleep(EVERY)
        finally:
            listeners -= 1

    @app.get("/", include_in_schema=False)
    @app.get("/camera/{stream:path}", include_in_schema=False)
    async def page() -> Response:
        return _file("index.html")

    @app.get("/static/{name}", include_in_schema=False)
    async def static(name: str) -> Response:
        if name not in [each.name for each in STATIC.iterdir()]:
            raise RequestError(404, "there is no such file")
        return _file(name)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        """The OpenAPI page. Its scripts come from elsewhere, so it is a sandbox: it cannot read the dashboard's key."""
        page = get_swagger_ui_html(openapi_url="SCHEMA", title="neotta serve")
        text = bytes(page.body).decode().replace("url: 'SCHEMA'", f"spec: {json.dumps(app.openapi())}")
        return HTMLResponse(text, headers={"Content-Security-Policy": "sandbox allow-scripts"})


def _file(name: str) -> Response:
    headers = {
        "Content-Security-Policy": POLICY,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }
    return Response(STATIC.joinpath(name).read_bytes(), media_type=KINDS[name.rpartition(".")[2]], headers=headers)

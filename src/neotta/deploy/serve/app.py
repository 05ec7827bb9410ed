"""The application: all routes of a service, guarded, with its pages and live figures; and running it with uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.resources import files
from types import FrameType

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from neotta.deploy.serve import cameras, classify, logs, metrics
from neotta.deploy.serve.cameras import SHOWN, about
from neotta.deploy.serve.guard import Guard, RequestError, check_exposure, is_loopback, on_error
from neotta.deploy.serve.infer import Infer
from neotta.deploy.serve.logs import log
from neotta.deploy.serve.metrics import Metrics
from neotta.deploy.serve.service import Service
from neotta.errors import NeottaError, OptionError


def application(service: Service, *, loopback: bool = True) -> Starlette:
    """The ASGI application of a service.

    Args:
        service: What answers; it starts and ends with the application.
        loopback: Whether the application is reached from this machine alone.
    """

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await service.start()
        try:
            yield
        finally:
            await service.close()

    measured = metrics.Metrics(service)
    return Starlette(
        routes=[
            *Infer(service).routes(),
            *classify.routes(service),
            *cameras.routes(service),
            Route("/api/events", _live(service)),
            *metrics.routes(measured),
            Route("/", _page),
            Route("/static/{name}", _static),
        ],
        middleware=[
            Middleware(Measuring, metrics=measured),
            Middleware(Guard, settings=service.settings, loopback=loopback),
        ],
        exception_handlers={HTTPException: on_error, NeottaError: on_error, Exception: on_error},
        lifespan=lifespan,
    )


class Server(uvicorn.Server):
    """A uvicorn server that tells its service when it has to end, so that endless answers end too."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to end: accepted requests are answered first."""
        self._service.ending = True
        super().handle_exit(sig, frame)


def make_server(service: Service, host: str = "127.0.0.1", port: int = 8000, *, log_level: str = "info") -> Server:
    """A server that is ready to run.

    Args:
        service: What answers.
        host: Address to listen on; other machines reach it only with a key.
        port: Port; 0 for any that is free.
        log_level: "debug", "info", "warning" or "error".
    """
    check_exposure(host, service.settings)
    limits = service.settings.limits
    config = uvicorn.Config(
        application(service, loopback=is_loopback(host)),
        host=host,
        port=port,
        http="h11",
        ws="none",
        h11_max_incomplete_event_size=64 * 1024,
        limit_concurrency=limits.connections + 1,  # uvicorn rejects the connection that reaches its limit
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=max(1, round(limits.timeout)),
        backlog=1024,
        lifespan="on",
    )
    logs.configure(log_level)
    return Server(config, service)


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens, or a clear reason why not."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host.strip("[]"), port))
    except OSError as error:
        bound.close()
        raise OptionError(
            f"cannot listen on {host}:{port}: {error.strerror or error} (choose another --port)"
        ) from None
    bound.listen(1024)
    return bound


EVERY = 0.5
"""Seconds between two events."""

LISTENERS = 64
"""Most pages that listen at once."""


def _live(service: Service) -> Callable[[Request], Awaitable[Response]]:
    """What cameras report, as server-sent events."""
    listeners = 0

    async def events(request: Request) -> Response:
        if listeners >= LISTENERS:
            raise RequestError(429, f"{LISTENERS} pages listen already", {"Retry-After": "10"})
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(stream(request), media_type="text/event-stream", headers=headers)

    async def stream(request: Request) -> AsyncIterator[str]:
        nonlocal listeners
        listeners += 1
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
            listeners -= 1

    return events


_OWN = ("/metrics", "/v2/health/live", "/v2/health/ready", "/api/events")
"""What is asked all the time, or never ends."""


class Measuring:
    """Measures every request that goes through.

    Args:
        app: What answers.
        metrics: Where it is counted.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Measure a request."""
        if scope["type"] != "http" or scope["path"] in _OWN:
            await self.app(scope, receive, send)
            return
        started, status = time.perf_counter(), 0

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, noting)
        finally:
            taken = time.perf_counter() - started
            self.metrics.requests.labels(str(status)).inc()
            self.metrics.seconds.observe(taken)
            log("request", method=scope["method"], path=scope["path"][:200], status=status, ms=round(taken * 1e3, 1))


KINDS = {"html": "text/html", "js": "text/javascript", "css": "text/css"}
STATIC = ("api.js", "app.js", "plots.js", "style.css")
POLICY = "default-src 'self'; img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


async def _page(request: Request) -> Response:
    return _file("index.html")


async def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in STATIC:
        raise RequestError(404, "there is no such file")
    return _file(name)


def _file(name: str) -> Response:
    content = files("neotta.deploy.serve").joinpath("static", name).read_bytes()
    headers = {
        "Content-Security-Policy": POLICY,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }
    return Response(content, media_type=KINDS[name.rpartition(".")[2]], headers=headers)

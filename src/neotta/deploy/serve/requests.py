"""Reading requests within the limits, answering them while their clients are there, and errors as one sentence."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from neotta.deploy.serve.fair import SMALL, FairQueue, Owner, Waiting
from neotta.deploy.serve.service import Service, log
from neotta.deploy.serve.settings import RequestError
from neotta.errors import DataError, InputError, StateError, StorageError

Result = TypeVar("Result")
PROBES = ("/v2/health/live", "/v2/health/ready")


class Requests:
    """Reads requests within the limits, and answers while their clients are there.

    Each is an entry of a fair queue until its answer, by its bytes: whoever holds most of the memory gives way.
    """

    def __init__(self, service: Service) -> None:
        self.limits = limits = service.settings.limits
        self.open: FairQueue[None] = FairQueue(limits.requests, "requests, or as many shares of what bodies may take,")
        self._share = max(SMALL, 2 * limits.body // limits.requests)  # bytes

    async def answered(
        self, request: Request, stream: str, most: int, work: Callable[[Body, Owner], Awaitable[Result]]
    ) -> Result:
        """Read a body of at most so many bytes, and do something with it while its client waits."""
        if request.headers.get("content-encoding", "identity") != "identity":
            raise RequestError(415, "compressed bodies are not taken: send the body as it is")
        length = int(request.headers.get("content-length", "0")[:20])
        if length > most:
            raise RequestError(413, f"the body is larger than {most:,} bytes")
        owner, body = (client_of(request), stream), Body(length)
        entry = self.open.add(None, owner, 1 + length // self._share)
        within = f"within {self.limits.timeout:g} seconds"
        try:
            late = RequestError(408, f"the body did not arrive {within}", {"Connection": "close"})
            await self._first(late, entry, body.read(request))
            late = RequestError(504, f"no answer {within}: the server has too much to do")
            answer: Result = await self._first(late, entry, work(body, owner), _disconnected(request))
            return answer
        except ClientDisconnect:
            raise RequestError(400, "the client has gone") from None
        finally:
            self.open.discard(entry)
            _drop(entry.result)

    async def _first(self, late: RequestError, entry: Waiting[None], *works: Awaitable[Any]) -> Any:
        """What comes first, unless the entry has to give way or it takes too long; the rest is cancelled."""
        tasks = [asyncio.ensure_future(work) for work in works]
        try:
            await asyncio.wait([*tasks, entry.result], timeout=self.limits.timeout, return_when=asyncio.FIRST_COMPLETED)
            for each in (*tasks, entry.result):
                if each.done():
                    return each.result()
            raise late
        finally:
            for task in tasks:
                _drop(task)


class Body:
    """The body of a request, held once: here, or by who takes it."""

    def __init__(self, length: int) -> None:
        self.length, self._content = length, bytearray(length)

    async def read(self, request: Request) -> None:
        place = 0
        async for part in request.stream():
            if place + len(part) > self.length:
                raise RequestError(411, "a body needs its length: Content-Length", {"Connection": "close"})
            self._content[place : place + len(part)] = part
            place += len(part)

    def take(self) -> bytearray:
        content, self._content = self._content, bytearray()
        return content


def client_of(request: Request) -> str:
    """Who asks: the name of the key, if there are several, and the address."""
    return f"{request.scope.get('key', '')}@{request.client.host if request.client else ''}"


def _drop(future: asyncio.Future[Any]) -> None:
    """Cancel what nobody waits for any more; what it ended with is not missed."""
    if not future.cancel() and not future.cancelled():
        future.exception()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    raise ClientDisconnect


# ---- errors: one sentence with its status


async def on_error(request: Request, error: Exception) -> Response:
    """The answer to a request that raised an error; what the client cannot mend stays in the log."""
    path = request.url.path[:200]
    if isinstance(error, RequestError):
        return _error(error.status, str(error), error.headers)
    if isinstance(error, HTTPException):
        known = {404: f"there is nothing at {path}", 405: f"{path} does not take {request.method}"}
        return _error(error.status_code, known.get(error.status_code, str(error.detail)), error.headers)
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        return _error(400, f"{'.'.join(map(str, first['loc'][1:]))}: {first['msg'].lower()}")
    if isinstance(error, InputError | DataError):
        return _error(400, str(error))
    log.error("%s: %s", type(error).__name__, error, extra={"values": {"request": request.scope.get("request_id")}})
    if isinstance(error, StorageError):
        return _error(503, "what was learnt cannot be stored at the moment: try again later", {"Retry-After": "5"})
    if isinstance(error, StateError):
        return _error(409, "a stored state cannot be read; the log has the reason")
    return _error(500, "the server failed to answer; its log has the reason")


def _error(status: int, reason: str, headers: Any = None) -> Response:
    return JSONResponse({"error": " ".join(reason.split())}, status, headers)


class Measured:
    """Gives each request an id, and measures and logs it; probes are not logged, and what never ends not measured."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app, self.metrics = app, service.metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status, path = time.perf_counter(), 500, scope["path"]
        given = Headers(scope=scope).get("x-request-id", "")
        scope["request_id"] = given if re.fullmatch(r"[\w.:/+=-]{1,100}", given, re.ASCII) else uuid.uuid4().hex

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-Id"] = scope["request_id"]
            await send(message)

        try:
            await self.app(scope, receive, noting)
        finally:
            taken = time.perf_counter() - started
            if path not in ("/metrics", "/events", *PROBES):
                self.metrics.requests.labels(str(status)).inc()
                self.metrics.seconds.observe(taken)
            if path not in PROBES:
                client = client_of(Request(scope))
                values = {"method": scope["method"], "path": path[:200], "status": status, "seconds": round(taken, 6)}
                log.info("request", extra={"values": {"request": scope["request_id"], "client": client, **values}})

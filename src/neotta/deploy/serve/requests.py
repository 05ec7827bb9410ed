"""Reading requests within the limits, answering them while their clients are there, and errors as one sentence."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from neotta.deploy.serve.service import Service, log
from neotta.deploy.serve.settings import RequestError
from neotta.errors import DataError, InputError, StateError, StorageError

Result = TypeVar("Result")
SMALL = 64 * 1024  # bytes that are parsed in the event loop
FREE = 2**20  # bytes of a body that always find room


class Requests:
    """Reads requests within the limits, and answers while their clients are there."""

    def __init__(self, service: Service) -> None:
        self.service, self.limits = service, service.settings.limits
        self._open = 0  # requests that are read or answered
        self._held = 0  # bytes of all bodies beyond FREE each
        self._parser = ThreadPoolExecutor(1, thread_name_prefix="neotta-parse")

    async def answered(self, request: Request, most: int, work: Callable[[bytes], Awaitable[Result]]) -> Result:
        """Read a body of at most so many bytes, and do something with it while its client waits."""
        parts: list[bytes] = []
        if self._open >= self.limits.requests:
            raise RequestError(503, f"{self._open} requests are open already: try later", {"Retry-After": "1"})
        self._open += 1
        try:
            await asyncio.wait_for(self._read(request, most, parts), self.limits.timeout)
            return await self._while_connected(request, work(b"".join(parts)))
        except asyncio.TimeoutError:
            raise RequestError(
                408, f"the body did not arrive within {self.limits.timeout:g} seconds", {"Connection": "close"}
            ) from None
        except ClientDisconnect:
            raise RequestError(400, "the client has gone") from None
        finally:
            self._open -= 1
            self._held -= max(0, sum(map(len, parts)) - FREE)

    async def _read(self, request: Request, most: int, parts: list[bytes]) -> None:
        if request.headers.get("content-encoding", "identity") != "identity":
            raise RequestError(415, "compressed bodies are not taken: send the body as it is")
        too_large = RequestError(413, f"the body is larger than {most:,} bytes")
        if int(request.headers.get("content-length", "0")[:20]) > most:
            raise too_large
        size = 0
        async for part in request.stream():
            if size + len(part) > most:
                raise too_large
            more = max(0, size + len(part) - FREE) - max(0, size - FREE)
            if more and self._held + more > 4 * self.limits.body:
                raise RequestError(429, "too many large requests at once: try later", {"Retry-After": "1"})
            parts.append(part)
            size, self._held = size + len(part), self._held + more

    async def _while_connected(self, request: Request, work: Awaitable[Result]) -> Result:
        """Do something, unless the client leaves or it takes too long; then it is cancelled."""
        task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(request))
        try:
            await asyncio.wait({task, gone}, timeout=self.limits.timeout, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            if gone.done():
                raise ClientDisconnect
            raise RequestError(504, f"no answer within {self.limits.timeout:g} seconds: the server has too much to do")
        finally:
            task.cancel()
            gone.cancel()

    async def parsed(self, size: int, work: Callable[..., Result], *arguments: Any) -> Result:
        """Parse so many bytes; not in the event loop unless they are few."""
        if size <= SMALL:
            return work(*arguments)
        return await asyncio.get_running_loop().run_in_executor(self._parser, _without_gc, work, *arguments)


def _without_gc(work: Callable[..., Result], *arguments: Any) -> Result:
    """Parsing JSON makes millions of objects and no cycles: collecting garbage would block all threads for seconds."""
    gc.disable()
    try:
        return work(*arguments)
    finally:
        gc.enable()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


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
    log.error("%s: %s", type(error).__name__, error)
    if isinstance(error, StorageError):
        return _error(503, "what was learnt cannot be stored at the moment: try again later", {"Retry-After": "5"})
    if isinstance(error, StateError):
        return _error(409, "a stored state cannot be read; the log has the reason")
    return _error(500, "the server failed to answer; its log has the reason")


def _error(status: int, reason: str, headers: Any = None) -> Response:
    return JSONResponse({"error": " ".join(reason.split())}, status, headers)


class Measured:
    """Measures every request that goes through, but those that are asked all the time or never end."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app, self.metrics = app, service.metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in ("/metrics", "/v2/health/live", "/v2/health/ready", "/events"):
            await self.app(scope, receive, send)
            return
        started, status = time.perf_counter(), 500

        async def noting(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self.app(scope, receive, noting)
        finally:
            taken = time.perf_counter() - started
            self.metrics.requests.labels(str(status)).inc()
            self.metrics.seconds.observe(taken)
            values = {"method": scope["method"], "path": scope["path"][:200], "status": status, "seconds": taken}
            log.debug("request", extra={"values": values})

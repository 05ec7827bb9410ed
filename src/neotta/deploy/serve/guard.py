"""Who may do what: keys, origins, hosts and limits on what is read; and errors as one sentence with a status code."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from neotta.deploy.serve.logs import log
from neotta.deploy.serve.settings import Limits, Settings
from neotta.errors import DataError, InputError, NeottaError, OptionError, StorageError

OPEN = ("/v2/health/live", "/v2/health/ready", "/", "/static/", "/favicon.ico")
"""What needs no key: health, and the empty page of the dashboard (its figures need one)."""

_SAFE = ("GET", "HEAD")


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a host."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def check_exposure(host: str, settings: Settings) -> None:
    """Reject a server that is open to others without a key, and bad keys."""
    if not is_loopback(host) and settings.key is None:
        raise OptionError(
            f"--host {host} opens the server to other machines and needs a key: set NEOTTA_KEY or --key-file FILE"
        )
    for key in (settings.key, settings.read_key):
        if key is not None and (len(key) < 16 or not key.isascii() or not key.isprintable()):
            raise OptionError("a key must have at least 16 printable ASCII characters: openssl rand -hex 24 makes one")
    if settings.key is not None and settings.key == settings.read_key:
        raise OptionError("the read-only key must differ from the key")


class Guard:
    """Lets a request through, or rejects it, before anything of its body is read.

    Args:
        app: What answers.
        settings: The keys.
        loopback: Whether the server listens on this machine alone: then the names that browsers may use for it are
            known, and others are rejected (a foreign page could otherwise point its own name here).
    """

    def __init__(self, app: ASGIApp, settings: Settings, loopback: bool) -> None:
        self.app, self.settings, self.loopback = app, settings, loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request."""
        if scope["type"] == "http":
            try:
                self._check(scope)
            except RequestError as error:
                await error_response(error)(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        headers, path = Headers(scope=scope), scope["path"]
        host = headers.get("host", "")
        if self.loopback and not is_loopback(_without_port(host)):
            raise RequestError(421, "this server answers only under the name localhost or a loopback address")
        origin = headers.get("origin")
        if scope["method"] not in _SAFE and origin is not None and origin.partition("://")[2] != host:
            raise RequestError(403, "requests from pages of other sites are rejected")
        if scope["method"] not in _SAFE and headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            raise RequestError(403, "requests from pages of other sites are rejected")
        if self.settings.key is None or path in OPEN or path.startswith("/static/"):
            return
        sent = _key(headers)
        if sent is None:
            raise RequestError(401, "a key is needed: Authorization: Bearer KEY", {"WWW-Authenticate": "Bearer"})
        if _same(sent, self.settings.key):
            return
        if self.settings.read_key is None or not _same(sent, self.settings.read_key):
            raise RequestError(401, "the key is wrong", {"WWW-Authenticate": "Bearer"})
        if scope["method"] not in _SAFE:
            raise RequestError(403, "this key is read-only")


def _without_port(host: str) -> str:
    return host.rpartition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]


def _key(headers: Headers) -> str | None:
    kind, _, key = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer" and key:
        return key.strip()
    return headers.get("x-api-key")


def _same(sent: str, key: str) -> bool:
    """Compare in constant time; hashes, so that not even the length shows."""
    return hmac.compare_digest(*(hashlib.sha256(each.encode()).digest() for each in (sent, key)))


async def read_body(request: Request, limits: Limits) -> bytes:
    """Read a body within the limits of size and time."""
    too_large = RequestError(413, f"the body is larger than {limits.body:,} bytes")
    if request.headers.get("content-encoding", "identity") != "identity":
        raise RequestError(415, "compressed bodies are not taken: send the body as it is")
    length = request.headers.get("content-length", "0")
    if not length.isdigit() or int(length) > limits.body:
        raise too_large

    async def received() -> list[bytes]:
        parts: list[bytes] = []
        size = 0
        async for part in request.stream():
            size += len(part)
            if size > limits.body:
                raise too_large
            parts.append(part)
        return parts

    try:
        parts = await asyncio.wait_for(received(), limits.timeout)
    except asyncio.TimeoutError:
        raise RequestError(
            408, f"the body did not arrive within {limits.timeout:g} seconds", {"Connection": "close"}
        ) from None
    except ClientDisconnect:
        raise RequestError(400, "the client has gone") from None
    return parts[0] if len(parts) == 1 else b"".join(parts)


class RequestError(NeottaError):
    """A request that is rejected with an HTTP status.

    Args:
        status: The HTTP status code.
        reason: One sentence for the client.
        headers: More headers of the answer.
    """

    def __init__(self, status: int, reason: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.headers = headers or {}


def error_response(error: Exception) -> Response:
    """The answer to a request that raised an error; what the client cannot mend stays in the log."""
    if isinstance(error, RequestError):
        return _answer(error.status, str(error), error.headers)
    if isinstance(error, InputError | DataError):
        return _answer(400, str(error))
    log("error", error=type(error).__name__, message=str(error))
    if isinstance(error, StorageError):
        return _answer(503, "what was learnt cannot be stored at the moment: try again later", {"Retry-After": "5"})
    return _answer(500, "the server failed to answer; its log has the reason")


async def on_error(request: Request, error: Exception) -> Response:
    """Handler of errors for Starlette."""
    status = getattr(error, "status_code", None)
    if isinstance(status, int):  # of Starlette itself: no such route, or another method
        sentence = {
            404: f"there is nothing at {request.url.path[:200]}",
            405: f"{request.url.path[:200]} does not take {request.method}",
        }
        headers: dict[str, Any] = dict(getattr(error, "headers", None) or {})
        return _answer(status, sentence.get(status, str(getattr(error, "detail", "rejected"))), headers)
    return error_response(error)


def _answer(status: int, reason: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": reason}, status, headers)

"""Who may do what: one key, and no requests from pages of other sites."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from neotta.deploy.serve.settings import RequestError
from neotta.errors import OptionError

OPEN = ("/", "/docs", "/openapi.json", "/v2/health/live", "/v2/health/ready")
OPEN_BELOW = ("/static/", "/camera/")  # the empty pages of the dashboard: what they show needs the key
SAFE = ("GET", "HEAD")


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a host."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def check_exposure(host: str, key: str | None) -> None:
    """Check that a server that other machines reach has a key, and that the key is a good one."""
    if not is_loopback(host) and key is None:
        raise OptionError(
            f"--host {host} opens the server to other machines and needs a key: set NEOTTA_KEY or --key-file FILE"
        )
    if key is not None and (len(key) < 16 or not key.isascii() or not key.isprintable()):
        raise OptionError("a key must have at least 16 printable ASCII characters: openssl rand -hex 24 makes one")


class Guard:
    """Lets a request through, or rejects it before anything of its body is read.

    If the server listens on this machine alone, the names that browsers may use for it are known, and others are
    rejected: a foreign page could otherwise point its own name here.
    """

    def __init__(self, app: ASGIApp, key: str | None, loopback: bool) -> None:
        self.app, self.loopback = app, loopback
        self._key = None if key is None else _digest(key)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self._check(Headers(scope=scope), scope["method"], scope["path"])
            except RequestError as error:
                await JSONResponse({"error": str(error)}, error.status, error.headers)(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def _check(self, headers: Headers, method: str, path: str) -> None:
        host = headers.get("host", "")
        if self.loopback and not is_loopback(host.rpartition("]")[0] if "]" in host else host.partition(":")[0]):
            raise RequestError(421, "this server answers only under the name localhost or a loopback address")
        foreign = headers.get("origin", f"http://{host}").partition("://")[2] != host
        if method not in SAFE and (foreign or headers.get("sec-fetch-site", "none") not in ("none", "same-origin")):
            raise RequestError(403, "requests from pages of other sites are rejected")
        if self._key is None or path in OPEN or path.startswith(OPEN_BELOW):
            return
        kind, _, sent = headers.get("authorization", "").partition(" ")
        sent = sent.strip() if kind.lower() == "bearer" else headers.get("x-api-key", "")
        if not hmac.compare_digest(_digest(sent), self._key):
            reason = "the key is wrong" if sent else "a key is needed: Authorization: Bearer KEY"
            raise RequestError(401, reason, {"WWW-Authenticate": "Bearer"})


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()  # equally long, so that not even the length shows

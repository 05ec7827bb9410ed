"""Who may do what: keys with roles, and no requests from pages of other sites."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import re
from pathlib import Path

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from neotta.deploy.serve.settings import RequestError
from neotta.errors import OptionError

OPEN = ("/", "/openapi.json", "/v2/health/live", "/v2/health/ready")
OPEN_BELOW = ("/static/", "/camera/", "/judge/")  # the empty pages of the dashboard: what they show needs the key
SAFE = ("GET", "HEAD")
ROLES = {"read": {"read"}, "write": {"write"}, "admin": {"read", "write", "admin"}}  # and what each may
log = logging.getLogger("neotta.serve")


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a host."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


class Keys:
    """Who may do what, by key.

    A file has a line `NAME ROLE KEY` for each, with the roles read (what is shown), write (classifying) and admin
    (everything); or it has one key, which is for everything. Without keys, all is open.
    """

    def __init__(self, key: str | None = None, file: Path | None = None) -> None:
        self._file = file
        self._known = self._read(file) if file else {_digest(key): ("", "admin")} if key else {}

    def __bool__(self) -> bool:
        return bool(self._known)

    def _read(self, path: Path) -> dict[bytes, tuple[str, str]]:
        try:
            text = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError(f"the key in {str(path)!r} cannot be read: {error}") from error
        lines = [line.split() for line in text.splitlines() if line.strip() and not line.startswith("#")]
        if lines and all(len(words) == 3 and words[1] in ROLES for words in lines):
            return {_digest(key): (name, role) for name, role, key in lines}
        if len(lines) != 1:
            raise OptionError(f"{str(path)!r} must hold one key, or lines NAME ROLE KEY (roles: {', '.join(ROLES)})")
        return {_digest(text): ("", "admin")}

    def reread(self) -> None:
        """Read the file again; if it cannot be, the keys stay as they are."""
        try:
            self._known = self._read(self._file) if self._file else self._known
            log.info("keys were read", extra={"values": {"keys": len(self._known)}})
        except OptionError as error:
            log.error("%s: the keys stay as they were", error)

    def check(self, sent: str, needed: str | None) -> str:
        """The name of the key that was sent, if its role allows what is needed."""
        digest, found = hashlib.sha256(sent.encode()).digest(), None
        for known, about in self._known.items():
            found = about if hmac.compare_digest(digest, known) else found
        if found is None:
            reason = "the key is wrong" if sent else "a key is needed: Authorization: Bearer KEY"
            raise RequestError(401, reason, {"WWW-Authenticate": "Bearer"})
        if needed is not None and needed not in ROLES[found[1]]:
            raise RequestError(403, f"this key may not do that: its role is {found[1]}, {needed} is needed")
        return found[0]


def _digest(key: str) -> bytes:
    if len(key) < 16 or not key.isascii() or not key.isprintable():
        raise OptionError("a key must have at least 16 printable ASCII characters: openssl rand -hex 24 makes one")
    return hashlib.sha256(key.encode()).digest()  # equally long, so that not even the length shows


def check_exposure(host: str, keys: Keys) -> None:
    """Check that a server that other machines reach has a key."""
    if not is_loopback(host) and not keys:
        raise OptionError(
            f"--host {host} opens the server to other machines and needs a key: set NEOTTA_KEY or --key-file FILE"
        )


class Guard:
    """Lets a request through, or rejects it before anything of its body is read.

    If the server listens on this machine alone, the names that browsers may use for it are known, and others are
    rejected: a foreign page could otherwise point its own name here.
    """

    def __init__(self, app: ASGIApp, keys: Keys, loopback: bool) -> None:
        self.app, self.keys, self.loopback = app, keys, loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                scope["key"] = self._check(Headers(scope=scope), scope["method"], scope["path"])
            except RequestError as error:
                await JSONResponse({"error": str(error)}, error.status, error.headers)(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def _check(self, headers: Headers, method: str, path: str) -> str:
        host = headers.get("host", "")
        if self.loopback and not is_loopback(re.sub(r":\d*$", "", host)):
            raise RequestError(421, "this server answers only under the name localhost or a loopback address")
        foreign = headers.get("origin", f"http://{host}").partition("://")[2] != host
        if method not in SAFE and (foreign or headers.get("sec-fetch-site", "none") not in ("none", "same-origin")):
            raise RequestError(403, "requests from pages of other sites are rejected")
        if not self.keys or path in OPEN or path.startswith(OPEN_BELOW):
            return ""
        kind, _, sent = headers.get("authorization", "").partition(" ")
        sent = sent.strip() if kind.lower() == "bearer" else headers.get("x-api-key", "")
        if path == "/classify" or path.startswith("/v2"):
            return self.keys.check(sent, None if method in SAFE else "write")  # what the model takes, all may know
        return self.keys.check(sent, "read" if method in SAFE else "admin")

"""One connection of the HTTP server: bounded in time and size before any route sees a request.

uvicorn waits for ever for a head that never ends, keeps what has arrived of it, and waits for clients that do not read.
Here a head and a body must arrive in time, a head has a largest size, an answer must be read in time, and the number of
connections is bounded. Refusals are `{"error": ...}`, as everywhere.
"""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from neotta.deploy.serve.settings import Limits

HEAD = 64 * 1024
"""Most bytes of a request's head: its address and headers."""

GRACE = 5.0
"""Seconds that a route has to refuse a late body itself, before the connection is closed."""


class Config(uvicorn.Config):
    """A configuration of uvicorn whose connections have limits.

    Args:
        app: What answers.
        limits: The limits.
        **options: Of `uvicorn.Config`.
    """

    def __init__(self, app: ASGIApp, limits: Limits, **options: Any) -> None:
        super().__init__(app, http=Connection, ws="none", **options)
        self.limits = limits


class Connection(HttpToolsProtocol):
    """A connection that neither stalls nor grows without end."""

    config: Config

    def __init__(self, config: Config, server_state: ServerState, app_state: dict[str, Any], _loop: Any = None) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = config.limits
        self._refusal: tuple[int, str] | None = None
        self._in_head, self._head, self._too_many = False, 0, False
        self._arriving: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    # ---- the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a head."""
        super().connection_made(transport)
        self._too_many = len(self.connections) > self._limits.connections
        self._expect(1.0 if self._too_many else self._limits.timeout)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all clocks."""
        for timer in (self._arriving, self._unread):
            _stop(timer)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what has arrived, but only so much of a head."""
        if self._in_head:
            self._head += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._in_head and self._head > HEAD:
            self._refuse(431, f"the head of the request is larger than {HEAD:,} bytes")
        elif self._arriving is None and (self.cycle is None or self.cycle.response_complete):
            self._expect(self._limits.timeout)  # empty lines between two requests

    # ---- a request

    def on_message_begin(self) -> None:
        """Begin to wait for the end of the head."""
        super().on_message_begin()
        if not self._in_head:
            self._in_head, self._head = True, 0
            self._expect(self._limits.timeout)

    def on_headers_complete(self) -> None:
        """Begin to wait for the body.

        Raises:
            ConnectionError: There are too many connections; the parser stops, and the refusal is sent.
        """
        self._in_head = False
        if self._too_many:
            self._refusal = 503, f"{self._limits.connections:,} connections are open already: try again later"
            raise ConnectionError
        self._expect(2 * self._limits.timeout + GRACE)  # behind an earlier request that is still being answered
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """All of it has arrived."""
        _stop(self._arriving)
        self._arriving = None
        super().on_message_complete()

    # ---- an answer

    def pause_writing(self) -> None:
        """The client does not read: wait, but not for ever."""
        super().pause_writing()
        self._unread = self._unread or self.loop.call_later(self._limits.timeout, self.transport.abort)

    def resume_writing(self) -> None:
        """The client reads."""
        _stop(self._unread)
        self._unread = None
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Refuse what the parser does not take."""
        self._refuse(*(self._refusal or (400, "this is not a valid HTTP request")))

    # ---- helpers

    def _expect(self, seconds: float) -> None:
        """Wait for the rest of a head or of a body."""
        _stop(self._arriving)
        self._arriving = self.loop.call_later(seconds, self._late)

    def _late(self) -> None:
        self._arriving = None
        if self._in_head:
            self._refuse(408, f"the head of the request did not arrive within {self._limits.timeout:g} seconds")
        elif not self.transport.is_closing():
            self.transport.close()

    def _refuse(self, status: int, reason: str) -> None:
        """Answer with one sentence, and close the connection."""
        if self.transport.is_closing():
            return
        body = json.dumps({"error": reason}).encode()
        head = [
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
            "content-type: application/json",
            f"content-length: {len(body)}",
            "connection: close",
            *(["retry-after: 1"] if status == 503 else []),
        ]
        cycle = self.cycle
        if cycle is None or cycle.response_complete or not cycle.response_started:  # not inside another answer
            self.transport.write("\r\n".join(head).encode() + b"\r\n\r\n" + body)
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        self.transport.close()


def _stop(timer: asyncio.TimerHandle | None) -> None:
    """Stop a timer."""
    if timer is not None:
        timer.cancel()

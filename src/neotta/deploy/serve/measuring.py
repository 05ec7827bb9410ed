"""Counts and times requests, for the metrics and the log."""

from __future__ import annotations

import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from neotta.deploy.serve.logs import log
from neotta.deploy.serve.metrics import Metrics

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

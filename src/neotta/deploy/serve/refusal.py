"""Refusals: errors that the client sees, as one sentence with a status code."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from neotta.deploy.serve.logs import log
from neotta.errors import DataError, InputError, NeottaError, StorageError


class Refusal(NeottaError):
    """A request that is not answered.

    Args:
        status: The HTTP status code.
        reason: One sentence for the client.
        headers: More headers of the answer.
    """

    def __init__(self, status: int, reason: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.headers = headers or {}


def refused(error: Exception) -> Response:
    """The answer to a request that raised an error; what the client cannot mend stays in the log."""
    if isinstance(error, Refusal):
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
            404: f"there is nothing at {request.url.path[:200]}: see /docs",
            405: f"{request.url.path[:200]} does not take {request.method}: see /docs",
        }
        headers: dict[str, Any] = dict(getattr(error, "headers", None) or {})
        return _answer(status, sentence.get(status, str(getattr(error, "detail", "refused"))), headers)
    return refused(error)


def _answer(status: int, reason: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": reason}, status, headers)

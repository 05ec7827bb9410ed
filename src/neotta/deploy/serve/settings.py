"""What can be chosen about a server, and errors as one sentence with an HTTP status."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator

from neotta.errors import NeottaError
from neotta.options import Options

DEFAULT_STREAM = "default"  # the stream of requests that name none
Whole = Annotated[int, Field(ge=1)]


class Limits(Options):
    """What one client may ask for, and what is held at once."""

    rows: Whole = Field(64, description="Most images in a batch, and so in a request.")
    wait: float = Field(0.005, ge=0, description="Seconds that a request waits for others to join its batch.")
    queue: Whole = Field(256, description="Most images that wait; beyond that clients are told to come back (429).")
    body: Whole = Field(64 * 2**20, description="Most bytes of a request.")
    json_bytes: Whole = Field(8 * 2**20, description="Most bytes of JSON in a request; larger tensors are sent binary.")
    values: Whole = Field(10**6, description="Most values in the JSON of a request; lists and names count as ten.")
    pixels: Whole = Field(25_000_000, description="Most pixels of an image.")
    streams: Whole = Field(10_000, description="Most streams that are known.")
    requests: Whole = Field(1000, description="Most requests that are read or answered at once (429 beyond that).")
    timeout: float = Field(30.0, ge=0.001, description="Seconds to receive a request, and to answer it.")


class Settings(Options):
    """How a model is served."""

    name: str = Field("model", description="Name of the model in addresses: /v2/models/NAME.")
    shadow: bool = Field(False, description="Answer with the plain model, and adapt beside it.")
    durable: float = Field(1.0, ge=0, le=3600, description="Seconds between two writes; 0 writes before each answer.")
    limits: Limits = Field(default_factory=lambda: Limits.make("limits", {}))
    key: str | None = Field(None, repr=False, description="Needed for everything but health and empty pages.")
    key_file: Path | None = Field(None, description="File with the key, or with lines NAME ROLE KEY.")
    grace: float = Field(10.0, ge=1, description="Seconds after SIGTERM within which the server ends.")
    proxies: str = Field("", description="Addresses of proxies whose X-Forwarded-For is believed, with commas.")
    history: float = Field(10.0, gt=0, description="Seconds between two points of a stream's history.")
    snapshots: float = Field(3600.0, gt=0, description="Seconds between two snapshots of a stream's state.")
    pictures: bool = Field(False, description="Show and judge the last pictures of streams; kept in memory only.")
    metric_streams: int = Field(100, ge=0, description="Most streams with metrics of their own.")

    @field_validator("name")
    @classmethod
    def _fits_into_an_address(cls, name: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
            raise ValueError("it does not fit into an address: use letters, digits, '.-_'")
        return name


def stream_id(value: str | int | None) -> str:
    """Check the stream that a request names."""
    text = DEFAULT_STREAM if value is None else str(value)
    if not 1 <= len(text) <= 100 or not text.isprintable() or text.strip() != text or text in (".", ".."):
        raise RequestError(400, "the stream must be 1 to 100 printable characters, without spaces at its ends")
    return text


class RequestError(NeottaError):
    """A request that is rejected with an HTTP status, and one sentence for the client."""

    def __init__(self, status: int, reason: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(reason)
        self.status, self.headers = status, headers or {}

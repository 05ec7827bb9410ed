"""What can be chosen about a server."""

from __future__ import annotations

import dataclasses
import math
import re

from neotta.errors import OptionError

DEFAULT_CAMERA = "default"
"""The camera of requests that name none."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclasses.dataclass(frozen=True)
class Limits:
    """What one client may ask for, and what is held at once.

    Attributes:
        rows: Most images in one batch, and so in one request.
        wait: Longest time that a request waits for others to join its batch, in seconds.
        queue: Most images that wait; beyond that clients are told to come back (429).
        body: Most bytes of a request.
        pixels: Most pixels of an image file.
        cameras: Most cameras that are known.
        connections: Most connections that are open at once.
        timeout: Longest time to receive a request, and to answer it, in seconds.
    """

    rows: int = 64
    wait: float = 0.005
    queue: int = 256
    body: int = 64 * 2**20
    pixels: int = 25_000_000
    cameras: int = 10_000
    connections: int = 1000
    timeout: float = 30.0

    def __post_init__(self) -> None:
        for name in ("rows", "queue", "body", "pixels", "cameras", "connections"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise OptionError(f"the limit {name} is {value!r}: expected a whole number, at least 1")
        for name, least in (("wait", 0.0), ("timeout", 0.001)):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not least <= value < math.inf:
                raise OptionError(f"the limit {name} is {value!r}: expected a number of seconds, at least {least:g}")


@dataclasses.dataclass(frozen=True)
class Settings:
    """How a model is served.

    Attributes:
        name: Name of the model in addresses: `/v2/models/NAME`.
        shadow: Answer with the plain model, and adapt beside it.
        durable: Seconds between two writes of what was learnt; 0 writes it before each batch is answered.
        limits: See `Limits`.
        key: Needed for everything but health; None for no key.
        read_key: Enough to look: the dashboard, its figures and the metrics.
        history: Seconds between two points of a camera's history.
        snapshots: Seconds between two snapshots of a camera's state.
        images: Number of recent images kept for the dashboard, per camera; 0 keeps none.
        metric_cameras: Most cameras with metrics of their own; the others are summed up as "other".
    """

    name: str = "model"
    shadow: bool = False
    durable: float = 1.0
    limits: Limits = Limits()
    key: str | None = dataclasses.field(default=None, repr=False)
    read_key: str | None = dataclasses.field(default=None, repr=False)
    history: float = 10.0
    snapshots: float = 3600.0
    images: int = 0
    metric_cameras: int = 100

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise OptionError(f"the name {self.name!r} does not fit into an address: use letters, digits, '.-_'")
        if not isinstance(self.durable, int | float) or not 0 <= self.durable <= 3600:
            raise OptionError(f"durable is {self.durable!r}: expected 'batch', or seconds from 0.01 to 3600")
        if self.read_key is not None and self.key is None:
            raise OptionError("a read-only key needs a key beside it: set NEOTTA_KEY or --key-file")


def model_name(source: str) -> str:
    """A name for addresses from what a model was loaded by: `timm:vit_tiny` is `vit_tiny`."""
    last = re.split(r"[:/\\]", source.rstrip("/"))[-1].removesuffix(".safetensors").removesuffix(".onnx")
    return re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip(".-_") or "model"


def durability(text: str) -> float:
    """The seconds that `--durable` means: `batch` is 0.

    Raises:
        OptionError: It is neither `batch` nor a number of seconds.
    """
    if text == "batch":
        return 0.0
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0.01 <= seconds <= 3600:
        raise OptionError(f"--durable is {text!r}: expected 'batch', or seconds from 0.01 to 3600")
    return seconds


def camera_name(value: object) -> str:
    """Check the id of a camera that a request names.

    Raises:
        ValueError: It is not a short printable text.
    """
    if value is None:
        return DEFAULT_CAMERA
    text = str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""
    if not 1 <= len(text) <= 100 or not text.isprintable() or text.strip() != text:
        raise ValueError("the stream must be a text of 1 to 100 printable characters, without spaces at its ends")
    return text

"""The description of an exported ONNX file: JSON in its metadata, under the key `neotta`."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
from collections.abc import Collection, Mapping
from typing import Any, Literal

from neotta._version import __version__
from neotta.errors import ModelLoadError, StateError
from neotta.neo.codec import StateFile

KEY = "neotta"
FORMAT = "neotta-onnx-5"
CHECKSUM_KEY = "neotta-sha256"
NO_CHECKSUM = "0" * 64  # placeholder while the checksum is computed
_CHECKSUM = re.compile(CHECKSUM_KEY.encode() + rb".{2}([0-9a-f]{64})", re.DOTALL)  # field number and length between
_QUANTIZER = b"onnx.quantize"  # producer name in the files that onnxruntime.quantization writes
Form = Literal["folded", "adaptive"]


@dataclasses.dataclass(frozen=True)
class Card:
    """The description in an exported file.

    Attributes:
        form: "folded" or "adaptive".
        name: Name of the classifier.
        method: The variant of NEO; None if the model was not adapted.
        options: The options of the variant.
        samples: Number of samples that the exported model has seen.
        preprocess: The preprocessing, as `Preprocess.to_dict()`.
        labels: Names of the classes.
        state: The initial state of each head, a `StateFile` as base64; adaptive only.
        bias: Bias of the head, if its output is that of the model and the rule acts on logits; adaptive only.
        neotta: The version that wrote the file.
    """

    form: Form
    name: str
    method: str | None = None
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    samples: int = 0
    preprocess: dict[str, Any] | None = None
    labels: list[str] | None = None
    state: str | None = None
    bias: list[float] | None = None
    neotta: str = __version__

    def to_json(self) -> str:
        """Encode the card for the file's metadata."""
        return json.dumps({"format": FORMAT, **dataclasses.asdict(self)})

    @classmethod
    def read(cls, metadata: Mapping[str, str]) -> Card | None:
        """Read the card from a file's metadata; None if there is none of this format."""
        try:
            entries = json.loads(metadata.get(KEY, "null"))
            if not isinstance(entries, dict) or entries.pop("format", None) != FORMAT:
                return None
            return cls(**entries)
        except (TypeError, ValueError):
            return None

    def states(self) -> StateFile:
        """The initial state, and what it belongs to."""
        try:
            return StateFile.from_bytes(base64.b64decode(self.state or "", validate=True), "the state in the file")
        except (TypeError, ValueError, StateError) as error:
            raise ModelLoadError(f"the description in the file is damaged: {error}") from error


def port(head: str, heads: Collection[str]) -> str:
    """Name of the graph's input for the state of a head; with one head, "state"."""
    return "state" if len(heads) == 1 else f"{head}.state"


def with_checksum(content: bytes) -> bytes:
    """The bytes of a file whose metadata has `NO_CHECKSUM` under `CHECKSUM_KEY`, with the checksum in its place."""
    place = _place(content)
    if place is None:
        raise ValueError("the file has no place for a checksum")
    return content[:place] + hashlib.sha256(content).hexdigest().encode() + content[place + len(NO_CHECKSUM) :]


def matches_checksum(content: bytes) -> bool | None:
    """Whether a file is as it was written; None if it has no checksum.

    ONNX Runtime's quantizer rewrites a file and copies the metadata, including a checksum that no longer applies. Its
    files name it as their producer, at the start of the file, and are not checked.
    """
    if content[2:].startswith(b"\x12" + bytes([len(_QUANTIZER)]) + _QUANTIZER):
        return True
    place = _place(content)
    if place is None:
        return None
    stored, end = content[place : place + len(NO_CHECKSUM)], place + len(NO_CHECKSUM)
    return hashlib.sha256(content[:place] + NO_CHECKSUM.encode() + content[end:]).hexdigest().encode() == stored


def _place(content: bytes) -> int | None:
    """Where the checksum begins: the metadata is at the end of a file, after the weights."""
    matches = list(_CHECKSUM.finditer(content, max(0, content.rfind(CHECKSUM_KEY.encode()))))
    return matches[0].start(1) if matches else None

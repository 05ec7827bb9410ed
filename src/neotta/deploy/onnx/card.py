"""The description of an exported ONNX file: JSON in its metadata, under the key `neotta`."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, Literal

from neotta._version import __version__
from neotta.errors import ModelLoadError
from neotta.neo.statefile import Array

KEY = "neotta"
FORMAT = "neotta-onnx-4"
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
        heads: Fingerprint of the weights of every head by name; adaptive only.
        fields: The fields of each head's state, in the order of its columns, each with its `shape`, `start`, `least`
            and `most` value (None for no limit); adaptive only.
        state: The initial state of each head, `width` numbers; adaptive only.
        bias: Bias of the head, if its output is that of the model and the rule acts on logits; adaptive only.
        reference: Where clean data lies, if the model has a reference: its arrays as base64 of a safetensors file, and
            their `digest`; adaptive only.
        neotta: The version that wrote the file.
    """

    form: Form
    name: str
    method: str | None = None
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    samples: int = 0
    preprocess: dict[str, Any] | None = None
    labels: list[str] | None = None
    heads: dict[str, str] = dataclasses.field(default_factory=dict)
    fields: dict[str, dict[str, dict[str, Any]]] = dataclasses.field(default_factory=dict)
    state: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    bias: list[float] | None = None
    reference: dict[str, str] | None = None
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

    def port(self, head: str) -> str:
        """Name of the graph's input for the state of a head; with one head, "state"."""
        return "state" if len(self.heads) == 1 else f"{head}.state"

    def reference_arrays(self) -> dict[str, Array]:
        """The arrays of the reference by name; none if there is none."""
        if self.reference is None:
            return {}
        from safetensors import SafetensorError
        from safetensors.numpy import load

        try:
            arrays: dict[str, Array] = load(base64.b64decode(self.reference["arrays"], validate=True))
        except (KeyError, TypeError, ValueError, SafetensorError) as error:
            raise ModelLoadError(f"the reference in the file is damaged: {error}") from error
        return arrays


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


def encoded(arrays: Mapping[str, Array], digest: str) -> dict[str, str]:
    """The arrays of a reference for the card."""
    from safetensors.numpy import save

    return {"arrays": base64.b64encode(save(dict(arrays))).decode("ascii"), "digest": digest}

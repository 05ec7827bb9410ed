"""The description of an exported ONNX file: JSON in its metadata, under the key `neotta`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, Literal

from neotta._version import __version__

KEY = "neotta"
FORMAT = "neotta-onnx-1"
Form = Literal["folded", "adaptive"]
State = dict[str, dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Card:
    """The description in an exported file.

    Attributes:
        form: "folded" or "adaptive".
        name: Name of the classifier.
        method: The variant of NEO; None if the model was not adapted.
        options: The options of the variant.
        samples: Number of samples seen by the exported centroid.
        preprocess: The preprocessing, as `Preprocess.to_dict()`.
        labels: Names of the classes.
        heads: Fingerprint of the weights of every head by name; adaptive only.
        state: Initial state of each centroid: numbers by name ("mean", "count", ...); adaptive only.
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
    state: State = dataclasses.field(default_factory=dict)
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

    def port(self, head: str, entry: str) -> str:
        """Name of the graph's input for an entry of a head's centroid.

        With one head, that is the entry itself: "mean", "count".
        """
        return entry if len(self.heads) == 1 else f"{head}.{entry}"

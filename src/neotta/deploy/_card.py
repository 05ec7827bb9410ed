"""What an exported ONNX file says of itself, in its metadata under the key `neotta`, as JSON."""

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
        samples: How many samples stand behind the centroid that was exported.
        preprocess: `Preprocess.to_dict()` of what belongs to the model.
        labels: Name of each class.
        heads: Fingerprint of the weights of every head, by its name in the model; adaptive only.
        state: What each centroid starts from: numbers by name ("mean", "count", ...); adaptive only.
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
        """For the file's metadata."""
        return json.dumps({"format": FORMAT, **dataclasses.asdict(self)})

    @classmethod
    def read(cls, metadata: Mapping[str, str]) -> Card | None:
        """Find the card in a file's metadata; None if there is none, or none of a format known here."""
        try:
            entries = json.loads(metadata.get(KEY, "null"))
            if not isinstance(entries, dict) or entries.pop("format", None) != FORMAT:
                return None
            return cls(**entries)
        except (TypeError, ValueError):
            return None

    def port(self, head: str, entry: str) -> str:
        """What an entry of a head's centroid is called among the inputs of the graph.

        With one head, as always except for distilled models, it is called by the entry alone: "mean", "count".
        """
        return entry if len(self.heads) == 1 else f"{head}.{entry}"

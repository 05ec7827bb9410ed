"""An ONNX file behind a server."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from neotta._extras import need
from neotta.deploy.onnx.head import head_of
from neotta.deploy.onnx.runtime import OnnxClassifier
from neotta.deploy.serve.engine import Engine, Forward
from neotta.errors import HeadNotFoundError, OptionError
from neotta.neo.context import streams
from neotta.neo.spill import Spill
from neotta.neo.statefile import Array, fingerprint
from neotta.neo.streams import Streams
from neotta.neo.variants import VARIANTS, rule_of


class OnnxEngine(Engine):
    """A classifier in an ONNX file of `neotta export`.

    A graph carries one state, a server one per camera: so the graph runs with an empty state, and the rule acts on its
    logits, W (h - c) + b = (W h + b) - W c. A folded file that was adapted before it was exported answers as it is: a
    second re-centering would subtract the shift twice.

    Args:
        path: The file.
        rule: A rule, or "none"; by default that of the file, "neo-stream" if it has none.
        folder: Folder of the cameras' states; None to keep them in memory.
        labels: Names of the classes, instead of those in the file.
        capacity: Most cameras in memory, if there is a folder.
        **options: Options of the rule.

    Raises:
        OptionError: The file does not say how images are made ready, or the rule needs embeddings.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        rule: str | None = None,
        *,
        folder: str | os.PathLike[str] | None = None,
        labels: Sequence[str] | None = None,
        capacity: int = 4096,
        **options: Any,
    ) -> None:
        self._classifier = OnnxClassifier(path)
        if self._classifier.preprocess is None:
            raise OptionError(f"{os.fspath(path)!r} does not say how images are made ready: export a loaded model")
        self.preprocess = self._classifier.preprocess
        folded = self._classifier.form == "folded" and self._classifier.count > 0
        if self._classifier.has_reference:
            raise OptionError(
                f"{os.fspath(path)!r} contains a reference, which the server does not use: export the model without it"
            )
        if self._classifier.form == "adaptive":
            self._classifier.reset()
        if folded and rule not in (None, "none"):
            raise OptionError(f"{os.fspath(path)!r} was adapted and folded: it is served as it is (omit --method)")
        self.rule = "none" if folded else rule or "neo-stream"
        self.options = dict(options)
        probe = self.forward(np.zeros((1, 3, *self.preprocess.size), np.float32))
        self.classes = probe.logits.shape[1]
        names = self._classifier.labels if labels is None else labels
        self.labels = tuple(names or map(str, range(self.classes)))
        if len(self.labels) != self.classes:
            raise OptionError(f"{len(self.labels)} labels for a model of {self.classes} classes")
        known = self._classifier.bias  # in an adaptive file with neo-stream; in others it is that of the last layer
        self._bias = None if self.rule == "none" else _bias(path) if known is None else known.astype(np.float32)
        self.streams = {} if self.rule == "none" else {"head": self._open(folder, capacity)}

    def _open(self, folder: str | os.PathLike[str] | None, capacity: int) -> Streams:
        if self.rule not in ("neo", "neo-continual", "neo-stream") or self.options.get("shrinkage"):
            raise OptionError(
                f"the rule {self.rule!r} with these options needs embeddings, which an ONNX file does not show: use "
                "neo-stream, neo or neo-continual"
            )
        checked = VARIANTS[self.rule].make(self.rule, self.options)
        rule, spill = rule_of(checked), None
        if folder is not None:
            owner = f"{fingerprint({'bias': np.asarray(self._bias)})} logits {self.rule} {checked}"
            spill = Spill(Path(folder) / "head", rule.layout(self.classes).width, owner)
        return Streams(rule, self.classes, many=True, capacity=None if spill is None else capacity, spill=spill)

    def forward(self, images: Array) -> Forward:
        """Run the graph with an empty state."""
        return Forward(self._classifier.predict(images, adapt=False))

    def recenter(self, forward: Forward, rows: Array, cameras: Sequence[str], adapt: bool) -> Array:
        """Apply the rule to the logits."""
        (states,) = self.streams.values()
        logits = torch.from_numpy(forward.logits[rows])
        bias = torch.from_numpy(np.asarray(self._bias, np.float32))
        with torch.no_grad(), streams(cameras):
            free = logits if states.rule.space == "logits" else logits - bias
            subtract = states.step(free, bias, adapt=adapt)
        return np.asarray((logits - subtract).float().numpy())


def _bias(path: str | os.PathLike[str]) -> Array:
    """The bias of the head, zero if it has none."""
    onnx = need("onnx", "reading the head of an ONNX file")
    model = onnx.load(os.fspath(path))
    try:
        weight, bias = head_of(model, "logits")
    except HeadNotFoundError as error:
        raise HeadNotFoundError(f"{os.fspath(path)!r} has no linear head: {error}") from None
    return np.zeros(len(weight), np.float32) if bias is None else np.asarray(bias, np.float32)

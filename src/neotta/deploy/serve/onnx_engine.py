"""An ONNX file behind a server."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neotta.deploy.onnx.head import read_head
from neotta.deploy.onnx.runtime import OnnxClassifier
from neotta.deploy.serve.engine import Engine
from neotta.errors import OptionError
from neotta.neo.codec import NAMELESS, owner_of
from neotta.neo.context import streams
from neotta.neo.output_head import OutputHead
from neotta.neo.spill import Spill
from neotta.neo.statefile import Array
from neotta.neo.streams import Streams
from neotta.neo.variants import rule_of


class OnnxEngine(Engine):
    """A classifier in an ONNX file of `neotta export`, which has to say how images are made ready.

    A graph carries one state, a server one per stream: so the graph runs with an empty state, and the rule acts on its
    logits, W (h - c) + b = (W h + b) - W c. A folded file that was adapted before it was exported answers as it is: a
    second re-centering would subtract the shift twice.
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
        adaptive = self._classifier.form == "adaptive"
        if adaptive and self._classifier.states.reference is not None:
            raise OptionError(
                f"{os.fspath(path)!r} contains a reference, which the server does not use: export the model without it"
            )
        folded = self._classifier.form == "folded" and self._classifier.count > 0
        if folded and rule not in (None, "none"):
            raise OptionError(f"{os.fspath(path)!r} was adapted and folded: it is served as it is (omit --method)")
        if adaptive:
            self._classifier.reset()
        self.preprocess = self._classifier.preprocess
        self.rule, self.dirty = "none" if folded else rule or "neo-stream", {}
        self.options = dict(options)
        self.classes = self._forward(np.zeros((1, 3, *self.preprocess.size), np.float32))[0].shape[1]
        names = self._classifier.labels if labels is None else labels
        self.labels = tuple(names or map(str, range(self.classes)))
        if len(self.labels) != self.classes:
            raise OptionError(f"{len(self.labels)} labels for a model of {self.classes} classes")
        self.heads = {}
        if self.rule != "none":
            known = self._classifier.bias  # in an adaptive file with neo-stream; in others that of the last layer
            weight, bias = read_head(path, "logits", adapted=True) if known is None else (None, known)
            self.heads[NAMELESS] = neo = self._head(weight, bias, folder, capacity)
            if adaptive:  # whose rule hides the head
                neo.last = next(iter(self._classifier.states.heads.values())).owner.get("weight")

    def _head(
        self, weight: Array | None, bias: Array | None, folder: str | os.PathLike[str] | None, capacity: int
    ) -> OutputHead:
        if self.rule not in ("neo", "neo-continual", "neo-stream") or self.options.get("shrinkage"):
            raise OptionError(
                f"the rule {self.rule!r} with these options needs embeddings, which an ONNX file does not show: use "
                "neo-stream, neo or neo-continual"
            )
        rule, spill = rule_of(self.rule, self.options), None
        if folder is not None:
            owner = f"{owner_of(None, bias, self.classes)} logits {self.rule} {rule}"
            spill = Spill(Path(folder) / NAMELESS, rule.layout(self.classes).width, owner)
        streams = Streams(rule, self.classes, many=True, capacity=None if spill is None else capacity, spill=spill)
        return OutputHead.of(weight, bias, streams)

    def _forward(self, images: Array) -> tuple[Array, tuple[Tensor, ...]]:
        return self._classifier.predict(images, adapt=False), ()

    def _recentered(
        self, plain: Array, embeddings: tuple[Tensor, ...], rows: Array, ids: Sequence[str], adapt: bool
    ) -> Array:
        (neo,) = self.heads.values()
        neo.adapting = adapt
        with torch.no_grad(), streams(ids):
            return np.asarray(neo.recentered(torch.from_numpy(plain[rows]), neo.bias).numpy())

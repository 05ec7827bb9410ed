"""A model behind a server: one forward pass for all streams, then each row re-centered with its stream's state."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from neotta.deploy.serve.fair import Answer
from neotta.errors import InputError, OptionError, UnsupportedModelError
from neotta.models.load import LoadedModel
from neotta.models.preprocess import Preprocess
from neotta.monitoring.accuracy import stability
from neotta.monitoring.health import Health, health_of
from neotta.neo.adapt import adapt
from neotta.neo.codec import NAMELESS, StateFile, owner_of
from neotta.neo.context import streams
from neotta.neo.files import file_of, fitting, known_weight, put
from neotta.neo.find_head import find_heads
from neotta.neo.head import NEOHead
from neotta.neo.head_views import HeadView
from neotta.neo.module_swap import ModuleSwap
from neotta.neo.output_head import OutputHead
from neotta.neo.spill import Spill
from neotta.neo.state import LARGEST
from neotta.neo.statefile import Array
from neotta.neo.streams import Streams
from neotta.neo.surgery import heads, original
from neotta.neo.variants import rule_of

MEASURED = 32  # rows of a batch whose stability is measured


class Engine(ABC):
    """A model and the states of its streams. Not thread-safe: one thread owns it."""

    rule: str  # "neo-stream", ..., or "none"
    classes: int
    labels: tuple[str, ...]
    preprocess: Preprocess
    heads: dict[str, NEOHead]  # what re-centers, by name; empty for the rule "none"
    dirty: dict[str, None]  # streams that learnt since they were last written, in order

    def predict(self, images: Array, ids: Sequence[str], adapt: bool | Array = True) -> Answer:
        """Answer a batch, (N, 3, H, W), with the stream of each row; if an error is raised, nothing was learnt."""
        plain, embeddings = self._forward(images)
        learnt = np.broadcast_to(adapt, len(plain)) & self.adapts & _usable(plain, embeddings)
        adapted = plain.copy()
        if len(self.streams) > 1 or (learnt.any() and not learnt.all()):
            self._recentered(plain, embeddings, np.arange(len(plain)), ids, False)  # all states can be read
        for flag in (True, False):  # what is learnt first also serves the other rows
            rows = np.flatnonzero(learnt == flag)
            if len(rows) and self.adapts:
                chosen = [ids[row] for row in rows.tolist()]
                adapted[rows] = self._recentered(plain, embeddings, rows, chosen, flag)
                self.dirty.update(dict.fromkeys(chosen if flag else ()))
        return Answer(plain, adapted, learnt, self._stable(plain, adapted, embeddings))

    @abstractmethod
    def _forward(self, images: Array) -> tuple[Array, tuple[Tensor, ...]]:
        """The logits of the plain model, (N, C) float32, and the input of each head, (N, d), if the model shows it."""

    @abstractmethod
    def _recentered(
        self, plain: Array, embeddings: tuple[Tensor, ...], rows: Array, ids: Sequence[str], adapt: bool
    ) -> Array:
        """The adapted logits of some rows of a batch, (n, C) float32."""

    def _stable(self, plain: Array, adapted: Array, embeddings: tuple[Tensor, ...]) -> Array:
        return np.full(len(plain), np.nan)

    @property
    def streams(self) -> dict[str, Streams]:
        """The states, by head."""
        return {name: neo.streams for name, neo in self.heads.items()}

    def offset(self, stream: str) -> Array:
        """What is subtracted from the logits of a stream, (C,)."""
        parts = []
        for neo in self.heads.values():
            offset, weight = neo.offset(stream).cpu().double().numpy(), known_weight(neo)
            parts.append(offset if weight is None or neo.space == "logits" else weight @ offset)
        return np.asarray(np.mean(parts, 0))

    # ---- the states

    @property
    def adapts(self) -> bool:
        return bool(self.heads)

    @property
    def stored(self) -> bool:
        """Whether states outlive the process."""
        return any(table.spill is not None for table in self.streams.values())

    def counts(self) -> dict[str, int]:
        """Number of samples learnt from, by stream."""
        for table in self.streams.values():
            return {str(stream): count for stream, count in table.counts().items()}
        return {}

    def health(self, stream: str) -> Health | None:
        """How adapting to a stream is doing; None if nothing was learnt of it."""
        for table in self.streams.values():
            state = _state(table, stream)
            return None if state is None else health_of(table.rule, state)
        return None

    def flush(self) -> None:
        """Write what was learnt; it is on disk when this returns."""
        if self.dirty and self.stored:
            for table in self.streams.values():
                table.flush(self.dirty)
        self.dirty = {}

    def undo(self) -> None:
        """Go back to what was last written."""
        for table in self.streams.values():
            table.drop(self.dirty)
        self.dirty = {}

    def reset(self, stream: str) -> None:
        """Forget what was learnt of a stream, also on disk, and also if its state cannot be read."""
        for table in self.streams.values():
            table.reset(stream)

    def snapshot(self, stream: str) -> StateFile | None:
        """A copy of a stream's state; None if nothing was learnt of it."""
        if not self.heads or any(_state(table, stream) is None for table in self.streams.values()):
            return None
        return file_of(self.rule, self.heads, stream=stream)

    def restore(self, stream: str, snapshot: StateFile) -> None:
        """Give a stream the state of a snapshot, also on disk; one that does not fit raises a `StateError`."""
        found = fitting(snapshot, "the snapshot", self.rule, self.heads, stream=stream)
        self.reset(stream)  # also heals a state that cannot be read
        put(found, stream)
        self.dirty[stream] = None
        self.flush()

    def begin_with(self, file: StateFile, source: str) -> None:
        """Let new streams start from a saved state; one of another model raises a `StateError`."""
        for neo, states in fitting(file, source, self.rule, self.heads, stream="").items():
            neo.streams.begin_with(torch.from_numpy(states.table))

    def close(self) -> None:
        """Let another process open the states; the engine cannot be used any more."""
        for table in self.streams.values():
            if table.spill is not None:
                table.spill.close()


def _usable(plain: Array, embeddings: tuple[Tensor, ...]) -> Array:
    """Which rows can be learnt from, (N,): those without NaN, Inf or numbers too large to sum up."""
    good = (np.abs(plain) <= LARGEST).all(1)
    for rows in embeddings:
        good &= (rows.abs() <= LARGEST).flatten(1).all(1).cpu().numpy()
    return np.asarray(good)


def _state(table: Streams, stream: str) -> Tensor | None:
    """The state of a stream, (1, width); None if it was never seen."""
    try:
        return table.state(stream)
    except InputError:
        return None


class TorchEngine(Engine):
    """A classifier of torch.

    The model itself stays plain and runs once per batch; what its head receives is caught, and the adaptive head runs
    on that again, which costs one small matrix product. So both answers are known, and a row of one stream can be
    learnt from while another is not. A model whose logits are not those of a linear head is rejected.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        rule: str = "neo-stream",
        *,
        folder: str | os.PathLike[str] | None = None,
        capacity: int = 4096,
        **options: Any,
    ) -> None:
        self.model, self.preprocess = loaded.model.eval(), loaded.preprocess
        self.rule, self.dirty, self.heads = rule, {}, {}
        self._caught: dict[nn.Module, Tensor] = {}
        originals: list[nn.Module | None] = [*find_heads(self.model).values()] if rule == "none" else []
        if rule != "none":
            place: dict[str, Any] = {} if folder is None else {"folder": folder, "capacity": capacity}
            adapt(self.model, rule, streams=True, **place, **options)
            self.heads = heads(self.model)
            pairs = {neo: original(neo) for neo in self.heads.values()}
            originals = list(pairs.values())
            ModuleSwap(self.model, pairs).do()  # type: ignore[arg-type]
        self._plain = [each for each in originals if isinstance(each, nn.Linear) and not isinstance(each, HeadView)]
        if len(self._plain) < len(originals):
            raise UnsupportedModelError(
                f"{type(self.model).__name__} has no plain linear head, which a server needs: serve an ONNX file of it"
            )
        for module in self._plain:
            module.register_forward_pre_hook(self._catch)
        self.classes = self._plain[0].out_features
        self.labels = loaded.labels or tuple(map(str, range(self.classes)))
        self._check()

    def _catch(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._caught[module] = inputs[0].detach()

    def _check(self) -> None:
        """The answer must be that of the head, or the mean over several: else it cannot be re-centered beside it."""
        images = np.random.default_rng(0).normal(size=(2, 3, *self.preprocess.size)).astype(np.float32)
        plain, embeddings = self._forward(images)
        with torch.inference_mode():
            parts = [head(rows) for head, rows in zip(self._plain, embeddings, strict=True)]
            mean = torch.stack(parts).mean(0).float().cpu().numpy()
        if mean.shape != plain.shape or not np.allclose(mean, plain, rtol=1e-3, atol=1e-3):
            raise UnsupportedModelError(
                f"the logits of this {type(self.model).__name__} are not those of its linear head: it cannot be served"
            )
        self.predict(images, ["", ""], adapt=False)  # what torch imports at the first call takes seconds

    def _forward(self, images: Array) -> tuple[Array, tuple[Tensor, ...]]:
        self._caught.clear()
        first = self._plain[0].weight
        with torch.inference_mode():
            logits = self.model(torch.from_numpy(np.require(images, None, ["W"])).to(first.device, first.dtype))
        return logits.float().cpu().numpy(), tuple(self._caught[head] for head in self._plain)

    def _recentered(
        self, plain: Array, embeddings: tuple[Tensor, ...], rows: Array, ids: Sequence[str], adapt: bool
    ) -> Array:
        index = torch.from_numpy(rows)
        parts = []
        with torch.inference_mode(), streams(ids):
            for neo, every in zip(self.heads.values(), embeddings, strict=True):
                neo.adapting = adapt
                parts.append(neo(every if len(rows) == len(every) else every[index]))
        logits = parts[0] if len(parts) == 1 else torch.stack(parts).mean(0)
        return np.asarray(logits.float().cpu().numpy())

    def _stable(self, plain: Array, adapted: Array, embeddings: tuple[Tensor, ...]) -> Array:
        stable = super()._stable(plain, adapted, embeddings)
        if len(self._plain) == 1 and embeddings[0].dim() == 2:
            some = embeddings[0][:MEASURED].clone()
            both = (torch.from_numpy(each[:MEASURED]).to(some) for each in (plain, adapted))
            stable[:MEASURED] = stability(self._plain[0], some, *both)
        return stable


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
        from neotta.deploy.onnx.head import read_head
        from neotta.deploy.onnx.runtime import OnnxClassifier

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
        self.classes = self._forward(np.zeros((1, 3, *self.preprocess.size), np.float32))[0].shape[1]
        names = self._classifier.labels if labels is None else labels
        self.labels = tuple(names or map(str, range(self.classes)))
        if len(self.labels) != self.classes:
            raise OptionError(f"{len(self.labels)} labels for a model of {self.classes} classes")
        self.heads = {}
        if self.rule != "none":
            if self.rule not in ("neo", "neo-continual", "neo-stream") or options.get("shrinkage"):
                raise OptionError(
                    f"the rule {self.rule!r} with these options needs embeddings, which an ONNX file does not show: "
                    "use neo-stream, neo or neo-continual"
                )
            known = self._classifier.bias  # in an adaptive file with neo-stream; in others that of the last layer
            weight, bias = read_head(path, "logits", adapted=True) if known is None else (None, known)
            known_rule, spill = rule_of(self.rule, options), None
            if folder is not None:
                owner = f"{owner_of(None, bias, self.classes)} logits {self.rule} {known_rule}"
                spill = Spill(Path(folder) / NAMELESS, known_rule.layout(self.classes).width, owner)
            most = None if spill is None else capacity
            table = Streams(known_rule, self.classes, many=True, capacity=most, spill=spill)
            self.heads[NAMELESS] = neo = OutputHead.of(weight, bias, table)
            if adaptive:  # whose rule hides the head
                neo.last = next(iter(self._classifier.states.heads.values())).owner.get("weight")

    def _forward(self, images: Array) -> tuple[Array, tuple[Tensor, ...]]:
        return self._classifier.predict(images, adapt=False), ()

    def _recentered(
        self, plain: Array, embeddings: tuple[Tensor, ...], rows: Array, ids: Sequence[str], adapt: bool
    ) -> Array:
        (neo,) = self.heads.values()
        neo.adapting = adapt
        with torch.no_grad(), streams(ids):
            return np.asarray(neo.recentered(torch.from_numpy(plain[rows]), neo.bias).numpy())

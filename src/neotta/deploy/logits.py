"""Re-centering of logits, as NumPy arrays, for any runtime that returns logits.

W (h - c) + b = (W h + b) - W c, and W c is the mean of the bias-free logits W h. So the state is a few vectors of C
numbers; the model and its embeddings are not needed.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from neotta.deploy._logit_input import Estimator, bias_of, matrix, weight_of
from neotta.errors import InputError, OptionError, StateError, StateMismatchError
from neotta.neo import context
from neotta.neo.class_means import ClassMeans
from neotta.neo.files import entries, states_in
from neotta.neo.mean import MeanRule, Weighting
from neotta.neo.merge import merge_tables
from neotta.neo.reference_file import Reference, as_reference, for_logits
from neotta.neo.state import Rule
from neotta.neo.statefile import Array, fingerprint, read_state, write_state
from neotta.neo.stream import StreamRule
from neotta.neo.stream_ids import StreamId, checked, checked_weights, for_rows
from neotta.neo.streams import Streams

StreamIds = StreamId | Iterable[StreamId]
LogitRule = Literal["neo-stream", "neo"]

OPTIONS = {  # of each rule
    "neo-stream": ("gate", "stay", "window", "prior", "reference"),
    "neo": ("weighting", "alpha", "debias", "uniform_bias", "shrinkage"),
}


class LogitRecenter(Estimator):
    """Re-center logits as an adapted model does, behind any runtime that returns logits.

    `recenter(logits)` adapts and re-centers, as the layer does. Everything is computed in float64, and the results
    equal those of the layer up to rounding, except as described below.

    *Rules.* `"neo-stream"`, the default here and of `neotta.adapt`, is made for real streams: few classes at a time,
    long runs of one class, a first sample. Each row's answer depends on those before it, so call `recenter` with
    samples in order of arrival. `"neo"` subtracts the running mean, as in the paper, and assumes balanced classes;
    `alpha` makes it NEO-Continual, `uniform_bias` NEO-MSE.

    *Scikit-learn.* `partial_fit` adapts to a batch. `transform` answers with the stored state and changes nothing: with
    neo-stream it is what `recenter(logits, adapt=False)` returns, which differs from the answer given on arrival.

    *Input.* Logits, (B, C), or the decision function of a binary classifier, (B,): the answer then is (B,), too.
    Probabilities are rejected; their logarithms are logits. With neo-stream, fewer than three classes get the plain
    answer: shift and label prior are then one number.

    *Bias.* The head's bias must be known; `from_onnx` reads it from the file. With `bias=None`, the bias is part of the
    mean and is subtracted too: the result is W (h - c). That is exact for a head without bias and for `uniform_bias`; a
    classifier trained on unbalanced classes loses their priors.

    *Shrinkage.* The layer's factor, max(0, 1 - s² / (n |c|²)), depends on lengths of embeddings, which logits do not
    show. `shrinkage="james-stein-logits"` is the same estimate from the mean and variance of the logits: it also is 0
    for one sample and tends to 1, but it is not the layer's factor.

    *Streams.* The first call that learns decides whether samples have streams; `reset` undoes that.

    Rows with NaN or Inf stay NaN or Inf and are excluded, with a warning; `rejected_` counts them. An object is not
    thread-safe: use one per thread and `merge` them.

    Args:
        bias: Bias of the head, (C,).
        rule: "neo-stream" or "neo".
        gate: Of neo-stream: minimum skewness of the logits at which shift and labels can be told apart; None for 0.6,
            and 0.5 from 500 classes on.
        stay: Of neo-stream: probability that a sticky stream repeats its last label.
        window: Of neo-stream: the short time scale, in label draws; None for all time.
        prior: Of neo-stream: use the order of the samples; set it to False if the order means nothing.
        weighting: Of neo: "sample" counts every sample equally, "batch" every batch.
        alpha: Of neo: weight of a new batch in a moving average, in [0, 1] (NEO-Continual).
        debias: Of neo: correct the bias of the moving average towards its zero start.
        uniform_bias: Of neo: use 1/C instead of the bias (NEO-MSE).
        shrinkage: Of neo: None or "james-stein-logits".
        weight: Weight of the head, (C, d), to check that the reference belongs to it.
        reference: Of neo-stream: where clean data lies, as `neotta.reference(model, images)` measured it, or the file
            it was saved to. Re-center towards it instead of the origin.

    Attributes:
        count_: Number of samples seen, in all streams.
        rejected_: Number of rows excluded.
        n_features_in_: Number of classes C.
    """

    n_features_in_: int
    _streams: Streams
    _bias: Tensor
    _made_with: tuple[list[Any], dict[str, Any]]

    def __init__(
        self,
        bias: Any = None,
        *,
        rule: LogitRule = "neo-stream",
        gate: float | None = None,
        stay: float = 0.98,
        window: float | None = 32.0,
        prior: bool = True,
        weighting: Weighting = "sample",
        alpha: float | None = None,
        debias: bool = False,
        uniform_bias: bool = False,
        shrinkage: str | None = None,
        weight: Any = None,
        reference: Reference | str | os.PathLike[str] | None = None,
    ) -> None:
        self.bias = bias
        self.rule = rule
        self.gate = gate
        self.stay = stay
        self.window = window
        self.prior = prior
        self.weighting = weighting
        self.alpha = alpha
        self.debias = debias
        self.uniform_bias = uniform_bias
        self.shrinkage = shrinkage
        self.weight = weight
        self.reference = reference

    @classmethod
    def from_onnx(cls, path: str | os.PathLike[str], *, output: str | None = None, **options: Any) -> LogitRecenter:
        """Create one for the logits of an ONNX file, with the bias of its last Gemm or MatMul + Add.

        Args:
            path: The file. It is read, not run; this needs the package `onnx`.
            output: Name of the output with the logits; by default the first.
            **options: Options of the constructor; the weight is filled in if a reference is checked with it.

        Raises:
            HeadNotFoundError: The logits do not come from a linear layer.
            AlreadyAdaptedError: The file is adaptive, or was adapted and folded.
        """
        from neotta.deploy.onnx.head import read_head

        weight, bias = read_head(path, output)
        if options.get("reference") is not None:
            options.setdefault("weight", weight)
        return cls(bias, **options)

    # ---- adapting and re-centering

    def recenter(
        self,
        logits: Any,
        adapt: bool = True,
        *,
        stream: StreamIds | None = None,
        weights: Iterable[float] | Array | None = None,
    ) -> Array:
        """Adapt to a batch of logits, unless `adapt=False`, and re-center it.

        Args:
            logits: (B, C), B may be 0; or a binary decision function, (B,).
            adapt: Whether to adapt; if not, the state does not change.
            stream: Whose samples these are: one id (a string or an integer), or one per row. Each stream has a state of
                its own.
            weights: How much each row counts, (B,), at least 0. Rows of weight 0 are answered but not learnt from.

        Returns:
            Re-centered logits of the same shape and dtype.
        """
        rows, flat = matrix(logits, type(self).__name__, getattr(self, "n_features_in_", None))
        ids = None if stream is None else for_rows(checked(stream), len(rows))
        numbers = None if weights is None else torch.from_numpy(checked_weights(weights))
        if numbers is not None and len(numbers) != len(rows):
            raise InputError(f"got {len(numbers)} weights for a batch of {len(rows)}: pass one per sample")
        subtract: Array | float = 0.0
        if adapt or self.__sklearn_is_fitted__():
            streams = self._begin(rows.shape[1], many=ids is not None)
            samples = torch.from_numpy(rows.astype(np.float64))
            if streams.rule.space == "embeddings":
                samples = samples - self._bias
            with nullcontext() if ids is None else context.streams(ids):
                subtract = streams.step(samples, self._bias, adapt=adapt, weights=numbers).numpy()
        answer = rows.astype(np.float64) - subtract
        if self.uniform_bias:
            answer += 1.0 / rows.shape[1] - bias_of(self.bias, rows.shape[1])
        answer = answer.astype(rows.dtype)
        return answer[:, 0] if flat else answer

    def fit(self, X: Any, y: Any = None) -> LogitRecenter:
        """Reset, then add one batch, (B, C)."""
        if len(matrix(X, type(self).__name__)[0]) == 0:
            raise InputError(f"Found array with 0 sample(s): a minimum of 1 is required by {type(self).__name__}.fit")
        self.reset()
        return self.partial_fit(X)

    def partial_fit(
        self,
        X: Any,
        y: Any = None,
        *,
        stream: StreamIds | None = None,
        weights: Iterable[float] | Array | None = None,
    ) -> LogitRecenter:
        """Add a batch, (B, C); B may be 0. See `recenter`."""
        self.recenter(X, stream=stream, weights=weights)
        return self

    def transform(self, X: Any, *, stream: StreamIds | None = None) -> Array:
        """Re-center logits, (B, C), with the stored state, which does not change; the dtype is kept."""
        self._fitted()
        return self.recenter(X, adapt=False, stream=stream)

    def fit_transform(self, X: Any, y: Any = None) -> Array:
        """Call `fit`, then `transform`."""
        return self.fit(X).transform(X)

    def offset(self, stream: StreamId | None = None) -> Array:
        """The vector that is subtracted from the logits, (C,): W c.

        The label prior of neo-stream is not part of it.
        """
        streams = self._fitted()
        return np.asarray(streams.rule.offset(streams.state(stream))[0].numpy())

    # ---- the state: what was seen, and how it is merged, saved and loaded

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_streams")

    @property
    def count_(self) -> int:
        """Number of samples seen, in all streams."""
        return self._tally(0)

    @property
    def rejected_(self) -> int:
        """Number of rows excluded because of NaN, Inf or their size."""
        return self._tally(1)

    def _tally(self, column: int) -> int:
        if not self.__sklearn_is_fitted__():
            raise AttributeError(f"this {type(self).__name__} is not fitted yet: it has no counts")
        return int(self._streams.everything()[1][:, column].sum())

    def streams(self) -> list[StreamId]:
        """The streams that were seen."""
        return list(self._streams.counts()) if self.__sklearn_is_fitted__() else []

    def reset(self, stream: StreamId | None = None) -> None:
        """Forget one stream, or everything."""
        if stream is not None:
            self._fitted().reset(stream)
            return
        for name in ("_streams", "_bias", "_made_with", "n_features_in_"):
            self.__dict__.pop(name, None)

    def merge(self, other: LogitRecenter) -> None:
        """Add the samples of another object, exactly as if they had been seen here, stream by stream.

        With neo-stream, the moments over all time add up; the window, the label prior and the last sample are reset.

        Raises:
            OptionError: One of them is a moving average, which depends on the order of its batches.
            StateMismatchError: They differ in options, bias or number of classes.
        """
        if not isinstance(other, LogitRecenter):
            raise InputError(f"expected a {type(self).__name__} to merge, got {type(other).__name__}")
        if self.alpha is not None or other.alpha is not None:
            raise OptionError("a moving average cannot be merged: it depends on the order of its batches")
        if not other.__sklearn_is_fitted__():
            return
        classes, theirs = other.n_features_in_, other._streams
        if getattr(self, "n_features_in_", classes) != classes or self._kind(classes) != other._kind(classes):
            raise StateMismatchError("states with different options, bias or number of classes cannot be merged")
        mine = self._begin(classes, many=theirs.many)
        mine.replace(*merge_tables([mine.everything(), theirs.everything()], mine.layout, mine.rule, mine.many))

    def save(self, path: str | os.PathLike[str], *, stream: StreamId | None = None) -> None:
        """Save the state to a safetensors file, atomically.

        Args:
            path: The file.
            stream: Save only this stream, as the state of an object that saw nothing else; by default all of them.
        """
        streams, many = self._fitted(), self._fitted().many and stream is None
        ids, states = streams.everything() if stream is None else ([], streams.state(stream))
        about = {**self._kind(self.n_features_in_), "streams": many}
        write_state(path, entries(streams.layout, ids, states, many=many), about)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Load a file written by `save`; if it does not fit, raise an error and change nothing."""
        tensors, about = read_state(path)
        if about.get("kind") != "logits":
            raise StateMismatchError(f"{os.fspath(path)!r} does not contain the state of a {type(self).__name__}")
        classes = about.get("classes")
        if not isinstance(classes, int) or isinstance(classes, bool) or classes < 1:
            raise StateMismatchError(f"{os.fspath(path)!r} does not say of how many classes it is")
        wrong = [name for name, value in self._kind(classes).items() if about.get(name) != value]
        if wrong:
            raise StateMismatchError(f"{os.fspath(path)!r} was saved with another {' and '.join(wrong)}")
        many = bool(about.get("streams"))
        rule, bias = self._rule(classes)
        streams = Streams(rule, classes, many=many)
        try:
            streams.replace(*states_in(streams.layout, rule, tensors, many))
        except StateMismatchError as error:
            raise StateMismatchError(f"{os.fspath(path)!r} does not contain a state of logits: {error}") from error
        self._start(streams, bias)

    def _begin(self, classes: int, many: bool) -> Streams:
        """Validate the options, and create an empty state if there is none."""
        if not self.__sklearn_is_fitted__():
            rule, bias = self._rule(classes)
            self._start(Streams(rule, classes, many=many), bias)
        elif any(mine is not other for mine, other in zip(self._options(), self._made_with[0], strict=True)):
            if self._kind(classes) != self._made_with[1]:
                raise OptionError("the state was made with other options: call reset() to change them")
            self._made_with = self._options(), self._made_with[1]  # as after pickling
        if self._streams.many is not many:
            so_far, now = ("without", "with") if many else ("with", "without")
            raise InputError(
                f"samples came {so_far} a stream so far, these come {now} one: use two objects, or reset()"
            )
        return self._streams

    def _start(self, streams: Streams, bias: Tensor) -> None:
        self.n_features_in_, self._streams, self._bias = streams.size, streams, bias
        self._made_with = self._options(), self._kind(streams.size)

    def _fitted(self) -> Streams:
        if not self.__sklearn_is_fitted__():
            raise StateError(f"this {type(self).__name__} is not fitted yet: call partial_fit or recenter first")
        return self._streams

    # ---- the options, checked on use, as scikit-learn requires

    def _kind(self, classes: int) -> dict[str, Any]:
        """What two states must have in common."""
        options = {name: getattr(self, name) for name in OPTIONS[self.rule] if name != "reference"}
        if self.reference is not None:
            options["reference"] = as_reference(self.reference).digest
        head = fingerprint({"bias": bias_of(self.bias, classes)})
        return {"kind": "logits", "classes": classes, "rule": self.rule, "options": options, "bias": head}

    def _options(self) -> list[Any]:
        return [getattr(self, name) for name in ("bias", "rule", "weight", *OPTIONS["neo"], *OPTIONS["neo-stream"])]

    def _rule(self, classes: int) -> tuple[Rule, Tensor]:
        """The rule, and what it takes for the bias, (C,)."""
        bias, known = bias_of(self.bias, classes), None
        if self.reference is not None and self.rule == "neo-stream":
            weight = None if self.weight is None else weight_of(self.weight, classes)
            known = for_logits(self.reference, classes, None if self.bias is None else bias, weight)
        rule = self._checked_rule(None if known is None else known.classes)
        return rule, torch.from_numpy(np.array(bias if known is None else known.origin, np.float64))

    def _checked_rule(self, means: ClassMeans | None) -> Rule:
        if self.rule not in OPTIONS:
            more = " (NEO-Continual is rule='neo' with alpha=0.1, NEO-MSE with uniform_bias=True)"
            raise OptionError(f"rule is {self.rule!r}: expected 'neo-stream' or 'neo'{more}")
        defaults = inspect.signature(type(self).__init__).parameters
        for rule, names in OPTIONS.items():
            given = [name for name in names if getattr(self, name) != defaults[name].default]
            if rule != self.rule and "reference" in given:
                raise OptionError(
                    "a reference needs rule='neo-stream' here: NEO scales it by how far embeddings shrink; logits do "
                    "not show that"
                )
            if rule != self.rule and given:
                raise OptionError(f"{given[0]} is an option of rule={rule!r}, but the rule is {self.rule!r}")
        if self.rule == "neo-stream":
            return StreamRule(self.gate, self.stay, self.window, self.prior, means)
        if self.shrinkage == "james-stein":
            raise OptionError(
                "shrinkage='james-stein' needs lengths of embeddings, which logits do not show: adapt the model, or "
                "use shrinkage='james-stein-logits'"
            )
        if self.shrinkage not in (None, "james-stein-logits"):
            raise OptionError(f"shrinkage is {self.shrinkage!r}: expected None or 'james-stein-logits'")
        return MeanRule(self.weighting, self.alpha, self.debias, "james-stein" if self.shrinkage else None)

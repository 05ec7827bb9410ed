"""Re-centering of logits, in NumPy, for any runtime that returns logits.

W (h - c) + b = (W h + b) - W c, and W c is the mean of the bias-free logits W h. So the state is a few vectors of C
numbers; the model and its embeddings are not needed.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np

from neotta.deploy._logit_input import bias_of, matrix
from neotta.deploy._logit_options import LogitRule, LogitShrinkage
from neotta.deploy._logit_state import FittedLogits
from neotta.deploy._stream_states import ids_of, weights_of
from neotta.errors import InputError
from neotta.neo.reference_file import Reference
from neotta.neo.rules import Weighting
from neotta.neo.statefile import Array
from neotta.neo.stream_ids import StreamId

StreamIds = StreamId | Iterable[StreamId]


class LogitRecenter(FittedLogits):
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
    Probabilities are refused; their logarithms are logits. With neo-stream, fewer than three classes get the plain
    answer: shift and label prior are then one number.

    *Bias.* The head's bias must be known; `from_onnx` reads it from the file. With `bias=None`, the bias is part of the
    mean and is subtracted too: the result is W (h - c). That is exact for a head without bias and for `uniform_bias`; a
    classifier trained on unbalanced classes loses their priors.

    *Shrinkage.* The layer's factor, max(0, 1 - s² / (n |c|²)), depends on lengths of embeddings. Logits determine them
    only if W has full column rank (at least as many classes as features): then h = W⁺ (W h). So
    `shrinkage="james-stein"` needs the bias and a `weight` of full column rank. `"james-stein-logits"` needs neither:
    it is the same estimate from the mean and variance of the logits. It also is 0 for one sample and tends to 1, but it
    is not the layer's factor.

    Rows with NaN or Inf stay NaN or Inf and are excluded, with a warning; `rejected_` counts them. An object is not
    thread-safe: use one per thread and `merge` them.

    Args:
        bias: Bias of the head, (C,).
        rule: "neo-stream" or "neo".
        gate: Of neo-stream: minimum skewness of the logits at which shift and labels can be told apart.
        stay: Of neo-stream: probability that a sticky stream repeats its last label.
        window: Of neo-stream: the short time scale, in label draws; None for all time.
        prior: Of neo-stream: use the order of the samples; set it to False if the order means nothing.
        weighting: Of neo: "sample" counts every sample equally, "batch" every batch.
        alpha: Of neo: weight of a new batch in a moving average, in [0, 1] (NEO-Continual).
        debias: Of neo: correct the bias of the moving average towards its zero start.
        uniform_bias: Of neo: use 1/C instead of the bias (NEO-MSE).
        shrinkage: Of neo: None, "james-stein" or "james-stein-logits".
        weight: Weight of the head, (C, d), for "james-stein"; and to check that the reference belongs to it.
        reference: Of neo-stream: where clean data lies, as `neotta.reference(model, images)` measured it, or the file
            it was saved to, which is read without torch. Re-center towards it instead of the origin.

    Attributes:
        mean_: Mean of the bias-free logits of the samples seen without a stream, (C,) float64; with neo-stream, centred
            and weighted.
        count_: Number of samples seen, in all streams.
        batches_: Number of batches seen.
        rejected_: Number of rows excluded.
        n_features_in_: Number of classes C.
    """

    def __init__(
        self,
        bias: Any = None,
        *,
        rule: LogitRule = "neo-stream",
        gate: float = 0.6,
        stay: float = 0.98,
        window: float | None = 32.0,
        prior: bool = True,
        weighting: Weighting = "sample",
        alpha: float | None = None,
        debias: bool = False,
        uniform_bias: bool = False,
        shrinkage: LogitShrinkage | None = None,
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
            **options: Options of the constructor; the weight is filled in if shrinkage needs it, or a reference is
                checked with it.

        Raises:
            HeadNotFoundError: The logits do not come from a linear layer.
            AlreadyAdaptedError: The file is adaptive, or has a centroid folded in.
        """
        from neotta.deploy._onnx_head import read_head

        weight, bias = read_head(path, output)
        if options.get("shrinkage") == "james-stein" or options.get("reference") is not None:
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
        ids, weights = ids_of(stream, len(rows)), weights_of(weights, len(rows))
        if not adapt and not self.__sklearn_is_fitted__():
            answer = self._answer(rows, 0.0)
        elif len(rows) == 0:
            self._begin(rows.shape[1])
            answer = rows
        else:
            memory = self._begin(rows.shape[1])
            subtract, rejected = memory.step(rows, ids, adapt=adapt, weights=weights)
            if rejected:
                warnings.warn(
                    f"{rejected} of {len(rows)} rows of logits contain NaN or Inf, or are too large: excluded",
                    RuntimeWarning,
                    stacklevel=2,
                )
            answer = self._answer(rows, subtract)
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
        self._need_state()
        return self.recenter(X, adapt=False, stream=stream)

    def fit_transform(self, X: Any, y: Any = None) -> Array:
        """Call `fit`, then `transform`."""
        return self.fit(X).transform(X)

    def centre(self, stream: StreamId | None = None) -> Array:
        """The vector that is subtracted from the logits, (C,): W c.

        The label prior of neo-stream is not part of it.
        """
        self._need_state()
        self._memory.states.known(stream)
        return self._begin(self.n_features_in_).centre(stream)

    def _answer(self, rows: Array, subtract: Array | float) -> Array:
        answer = rows.astype(np.float64) - subtract
        if self.uniform_bias:
            answer += 1.0 / rows.shape[1] - bias_of(self.bias, rows.shape[1])
        return answer.astype(rows.dtype)

"""NEO on logits alone, in NumPy: behind any runtime that returns logits.

W (h - c) + b = (W h + b) - W c, and W c is the mean of the bias-free logits W h. So the state is the running mean of
C numbers, and neither the model nor its embeddings are needed.
"""

from __future__ import annotations

import os
import warnings
from typing import Any, Literal

import numpy as np

from neotta.deploy._estimator import matrix
from neotta.deploy._logit_options import bias_of
from neotta.deploy._logit_state import LogitState, Shrinkage
from neotta.errors import InputError
from neotta.neo.statefile import Array


class LogitRecenter(LogitState):
    """Re-center logits by their running mean, as `NEOHead` does with embeddings.

    `recenter(logits)` takes a batch in and answers, which is what the layer does; `partial_fit` and `transform` are its
    two halves, under the names of scikit-learn. All variants give the layer's answers (to rounding; everything is
    computed in float64), except where it says so below.

    *The bias.* The mean has to be that of the bias-free logits, so the head's bias has to be known. `from_onnx` reads
    it out of a file. Without it, `bias=None`, the bias counts as part of the logits' mean and is subtracted too: the
    answer is W (h - c), as if the head had none. That is exact for a head without bias and for `uniform_bias`, which
    replaces the bias anyway; a classifier trained on unbalanced classes loses their priors.

    *Shrinkage.* The layer's factor, max(0, 1 - s² / (n |c|²)), is made of lengths of embeddings. Logits determine
    these only if W has full column rank (at least as many classes as features, in general position): then
    h = W⁺ (W h). `shrinkage="james-stein"` therefore needs `weight` (and the bias), and refuses one of lower rank, for
    which embeddings of different lengths have the same logits. `"james-stein-logits"` needs neither: it is the same
    estimate made of the logits' own mean and variance. It too is 0 for one sample and 1 in the limit, but it is not
    the layer's factor.

    Rows with NaN or Inf are answered (with NaN or Inf) but never enter the mean; they are counted in `rejected_`, and
    a warning says so. One object is for one thread at a time; give each thread its own and `merge` them.

    Args:
        bias: The bias of the head, (C,).
        weighting: "sample" counts every sample equally, "batch" every batch.
        alpha: The weight of a new batch in a moving average, in [0, 1], instead (NEO-Continual).
        debias: Divide the zero start out of the moving average.
        uniform_bias: Answer with 1/C in the place of the bias (NEO-MSE).
        shrinkage: None, "james-stein" or "james-stein-logits".
        weight: The weight of the head, (C, d), for "james-stein".

    Attributes:
        mean_: Running mean of the bias-free logits, (C,) float64.
        count_: How many samples stand behind it.
        batches_: How many batches.
        rejected_: How many rows were kept out.
        n_features_in_: The number of classes C.
    """

    def __init__(
        self,
        bias: Any = None,
        *,
        weighting: Literal["sample", "batch"] = "sample",
        alpha: float | None = None,
        debias: bool = False,
        uniform_bias: bool = False,
        shrinkage: Shrinkage | None = None,
        weight: Any = None,
    ) -> None:
        self.bias = bias
        self.weighting = weighting
        self.alpha = alpha
        self.debias = debias
        self.uniform_bias = uniform_bias
        self.shrinkage = shrinkage
        self.weight = weight

    @classmethod
    def from_onnx(cls, path: str | os.PathLike[str], *, output: str | None = None, **options: Any) -> LogitRecenter:
        """Make one for the logits of an ONNX file, with the bias of its last Gemm or MatMul + Add.

        Args:
            path: The file. It is read, not run; this needs the package `onnx`.
            output: Which of its outputs are the logits; the first, if not given.
            **options: As of the constructor; the weight is filled in where shrinkage needs it.

        Raises:
            HeadNotFoundError: The logits do not come from a linear layer; the error says from what.
            AlreadyAdaptedError: The file re-centers its logits itself, or has a centroid folded in.
        """
        from neotta.deploy._onnx_head import read_head

        weight, bias = read_head(path, output)
        if options.get("shrinkage") == "james-stein":
            options.setdefault("weight", weight)
        return cls(bias, **options)

    # ---- answering and adapting

    def recenter(self, logits: Any, adapt: bool = True) -> Array:
        """Take a batch of logits in, unless told not to, and answer; (B, C) to (B, C), B may be 0."""
        if adapt:
            self.partial_fit(logits)
        elif not self._fitted:
            return self._answer(matrix(logits, type(self).__name__), 0.0)
        return self.transform(logits)

    def fit(self, X: Any, y: Any = None) -> LogitRecenter:
        """Forget everything and take in one batch, (B, C)."""
        if matrix(X, type(self).__name__).shape[0] == 0:
            raise InputError(f"Found array with 0 sample(s): a minimum of 1 is required by {type(self).__name__}.fit")
        self.reset()
        return self.partial_fit(X)

    def partial_fit(self, X: Any, y: Any = None) -> LogitRecenter:
        """Take in a batch, (B, C); B may be 0."""
        rows = self._rows(X)
        self._begin(rows.shape[1])
        if len(rows) == 0:
            return self
        finite = np.isfinite(rows).all(axis=1)
        count = int(finite.sum())
        self.rejected_ += len(rows) - count
        if count < len(rows):
            warnings.warn(
                f"{len(rows) - count} of {len(rows)} rows of logits hold NaN or Inf: kept out of the mean",
                RuntimeWarning,
                stacklevel=2,
            )
        if count:
            self._take(rows[finite].astype(np.float64) - bias_of(self.bias, rows.shape[1]))
        return self

    def transform(self, X: Any) -> Array:
        """Re-center logits, (B, C), with the mean as it is; the dtype stays."""
        self._need_state()
        return self._answer(self._rows(X), self.centre())

    def fit_transform(self, X: Any, y: Any = None) -> Array:
        """`fit`, then `transform`."""
        return self.fit(X).transform(X)

    def _answer(self, rows: Array, centre: Array | float) -> Array:
        answer = rows.astype(np.float64) - centre
        if self.uniform_bias:
            answer += 1.0 / rows.shape[1] - bias_of(self.bias, rows.shape[1])
        return answer.astype(rows.dtype)

    def _rows(self, X: Any) -> Array:
        return matrix(X, type(self).__name__, getattr(self, "n_features_in_", None))

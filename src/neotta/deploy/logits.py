"""NEO on logits alone, in NumPy: behind any runtime that returns logits.

W (h - c) + b = (W h + b) - W c, and W c is the mean of the bias-free logits W h. So the state is the running mean of
C numbers, and neither the model nor its embeddings are needed.
"""

from __future__ import annotations

import math
import os
import warnings
from typing import Any, Literal

import numpy as np

from neotta.deploy._estimator import Estimator, matrix
from neotta.errors import InputError, OptionError, StateError, StateMismatchError
from neotta.statefile import Array, fingerprint, read_arrays, write_arrays

Shrinkage = Literal["james-stein", "james-stein-logits"]


class LogitRecenter(Estimator):
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

    mean_: Array
    scatter_: float
    count_: int
    batches_: int
    rejected_: int
    n_features_in_: int

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
        bias = self._bias(rows.shape[1])
        self._check(rows.shape[1])
        if not self._fitted:
            self._clear(rows.shape[1])
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
            self._take(rows[finite].astype(np.float64) - bias)
        return self

    def transform(self, X: Any) -> Array:
        """Re-center logits, (B, C), with the mean as it is; the dtype stays."""
        if not self._fitted:
            raise StateError(f"this {type(self).__name__} is not fitted yet: call partial_fit or recenter first")
        return self._answer(self._rows(X), self.centre())

    def fit_transform(self, X: Any, y: Any = None) -> Array:
        """`fit`, then `transform`."""
        return self.fit(X).transform(X)

    def centre(self) -> Array:
        """The vector that is subtracted from the bias-free logits, (C,): W c."""
        self._check(self.n_features_in_)
        if self.shrinkage is not None:
            signal = self._length(self.mean_)
            if self.count_ < 2 or signal == 0.0:
                return np.zeros_like(self.mean_)
            noise = self.scatter_ / (self.count_ - 1) / self.count_
            return self.mean_ * max(0.0, 1.0 - noise / signal)
        if self.debias and self.alpha is not None:
            # 1 - (1 - alpha)^t, written so that it is right for the smallest alpha too
            start = math.expm1(max(self.batches_, 1) * math.log1p(-self.alpha)) if self.alpha < 1.0 else -1.0
            return self.mean_ / -start if start else self.mean_
        return self.mean_.copy()

    def _answer(self, rows: Array, centre: Array | float) -> Array:
        answer = rows.astype(np.float64) - centre
        if self.uniform_bias:
            answer += 1.0 / rows.shape[1] - self._bias(rows.shape[1])
        return answer.astype(rows.dtype)

    def _take(self, free: Array) -> None:
        """Take in finite, bias-free logits, (B, C) with B > 0."""
        batch, count, seen = free.mean(axis=0), len(free), self.count_
        if self.shrinkage is not None:
            self.scatter_ += self._length(free - batch)
            self.scatter_ += self._length(batch - self.mean_) * seen * count / (seen + count)
        self.count_ += count
        self.batches_ += 1
        share = 1.0 / self.batches_ if self.weighting == "batch" else count / self.count_
        self.mean_ = self.mean_ + (batch - self.mean_) * (share if self.alpha is None else self.alpha)

    def _length(self, free: Array) -> float:
        """Sum of squares of bias-free logits (..., C), or of the embeddings (..., d) behind them."""
        if self.shrinkage == "james-stein":
            free = free @ self._inverse.T
        return float(np.square(free).sum())

    # ---- the state

    @property
    def _fitted(self) -> bool:
        return hasattr(self, "mean_")

    def reset(self) -> None:
        """Forget everything."""
        for name in ("mean_", "scatter_", "count_", "batches_", "rejected_", "n_features_in_", "_inverse"):
            self.__dict__.pop(name, None)

    def merge(self, other: LogitRecenter) -> None:
        """Take in the state of another, exactly as if its samples had come here.

        Raises:
            OptionError: A moving average cannot be merged: it depends on the order of its batches.
            StateMismatchError: The two count in different ways or differ in size.
        """
        if self.alpha is not None or other.alpha is not None:
            raise OptionError("a moving average cannot be merged: it depends on the order of its batches")
        if not other._fitted:
            return
        if not self._fitted:
            self.partial_fit(np.empty((0, other.n_features_in_)))
        if self._kind() != other._kind():
            raise StateMismatchError("states of other options, bias or number of classes cannot be merged")
        by = "count_" if self.weighting == "sample" else "batches_"
        mine, theirs = getattr(self, by), getattr(other, by)
        step = other.mean_ - self.mean_
        total = max(mine + theirs, 1)
        if self.shrinkage is not None:
            self.scatter_ += other.scatter_ + self._length(step) * mine * theirs / total
        self.mean_ = self.mean_ + step * (theirs / total)
        self.count_ += other.count_
        self.batches_ += other.batches_
        self.rejected_ += other.rejected_

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the state as a safetensors file, which appears at once and whole."""
        if not self._fitted:
            raise StateError(f"this {type(self).__name__} has no state yet: call partial_fit or recenter first")
        names = ("mean_", "scatter_", "count_", "batches_", "rejected_")
        write_arrays(path, {name: np.asarray(getattr(self, name)) for name in names}, self._kind())

    def load(self, path: str | os.PathLike[str]) -> None:
        """Go on from a file of `save`; if it does not fit, an error and no change."""
        arrays, about = read_arrays(path)
        if about.get("kind") != "logits":
            raise StateMismatchError(f"{os.fspath(path)!r} holds no state of a {type(self).__name__}")
        blank = LogitRecenter(**self.get_params()).partial_fit(np.empty((0, about["classes"])))
        wrong = [name for name, value in blank._kind().items() if about.get(name) != value]
        if wrong:
            raise StateMismatchError(f"{os.fspath(path)!r} was saved with another {' and '.join(wrong)}")
        state = {name: array if name == "mean_" else array.item() for name, array in arrays.items()}
        self.__dict__.update({**vars(blank), **state})

    def _kind(self) -> dict[str, Any]:
        """What two states must have in common."""
        size = self.n_features_in_
        names = ("weighting", "alpha", "debias", "uniform_bias", "shrinkage")
        options = {name: getattr(self, name) for name in names}
        head = fingerprint({"bias": self._bias(size)})
        return {"kind": "logits", "classes": size, "options": options, "bias": head}

    def _clear(self, classes: int) -> None:
        self.n_features_in_ = classes
        self._shrinkage = self.shrinkage
        self.mean_ = np.zeros(classes)
        self.scatter_ = 0.0
        self.count_ = self.batches_ = self.rejected_ = 0

    # ---- checking

    def _rows(self, X: Any) -> Array:
        return matrix(X, type(self).__name__, getattr(self, "n_features_in_", None))

    def _bias(self, classes: int) -> Array:
        """The bias as numbers, (C,); zeros if there is none."""
        if self.bias is None:
            return np.zeros(classes)
        bias = np.asarray(self.bias, np.float64)
        if bias.shape != (classes,) or not np.isfinite(bias).all():
            raise OptionError(f"bias takes {classes} finite numbers, one for each class, got shape {bias.shape}")
        return bias

    def _check(self, classes: int) -> None:
        """Check the options: scikit-learn wants that done only when they are used."""
        if self.weighting not in ("sample", "batch"):
            raise OptionError(f"weighting is 'sample' or 'batch', got {self.weighting!r}")
        if self.alpha is not None and not 0.0 <= self.alpha <= 1.0:
            raise OptionError(f"alpha is {self.alpha}: it must lie between 0 and 1")
        if self.debias and self.alpha is None:
            raise OptionError("debias belongs to the moving average: give alpha too")
        if self.shrinkage not in (None, "james-stein", "james-stein-logits"):
            raise OptionError(f"shrinkage is None, 'james-stein' or 'james-stein-logits', got {self.shrinkage!r}")
        if self.shrinkage and (self.alpha is not None or self.weighting != "sample"):
            raise OptionError("shrinkage goes with weighting='sample' and no alpha: it needs a count of samples")
        if self._fitted and self.shrinkage != self._shrinkage:
            raise OptionError("shrinkage needs the variance from the first sample on: reset() before changing it")
        if self.shrinkage == "james-stein" and not hasattr(self, "_inverse"):
            self._inverse = self._inverted(classes)

    def _inverted(self, classes: int) -> Array:
        """W⁺, (d, C), which makes embeddings of bias-free logits."""
        other = "shrinkage='james-stein-logits' does without"
        if self.weight is None:
            raise OptionError(f"shrinkage='james-stein' needs weight=, the weight of the head (C, d); {other}")
        weight = np.asarray(self.weight, np.float64)
        if weight.ndim != 2 or len(weight) != classes or not np.isfinite(weight).all():
            raise OptionError(f"weight takes finite numbers of ({classes}, d), got shape {weight.shape}")
        rank = np.linalg.matrix_rank(weight)
        if rank < weight.shape[1]:
            raise OptionError(
                f"shrinkage='james-stein' cannot be had from these logits: the weight has rank {rank} for embeddings "
                f"of {weight.shape[1]} numbers, so their lengths are not determined; {other}"
            )
        return np.linalg.pinv(weight)

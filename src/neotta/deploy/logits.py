"""NEO on logits, in NumPy, for any runtime that returns logits.

W (h - c) + b = (W h + b) - W c, and W c is the mean of the bias-free logits W h. So the state is the running mean of
C numbers; the model and its embeddings are not needed.
"""

from __future__ import annotations

import os
import warnings
from typing import Any, Literal, get_args

import numpy as np

from neotta.deploy._logit_input import Estimator, bias_of, inverse_of, matrix
from neotta.errors import InputError, OptionError, StateError, StateMismatchError
from neotta.neo import moments
from neotta.neo.moments import Moments
from neotta.neo.rules import MeanRule, Weighting
from neotta.neo.state_checks import check_fields, completed
from neotta.neo.statefile import Array, fingerprint, read_arrays, write_arrays

LogitShrinkage = Literal["james-stein", "james-stein-logits"]


class LogitRecenter(Estimator):
    """Re-center logits by their running mean, as `NEOHead` does with embeddings.

    `recenter(logits)` adapts and re-centers, as the layer does; `partial_fit` and `transform` are its two steps, named
    as in scikit-learn. The results equal those of the layer up to rounding, except as described below. Everything is
    computed in float64.

    *Bias.* The mean is that of the bias-free logits, so the head's bias must be known; `from_onnx` reads it from the
    file. With `bias=None`, the bias is part of the mean and is subtracted too: the result is W (h - c). That is exact
    for a head without bias and for `uniform_bias`; a classifier trained on unbalanced classes loses their priors.

    *Shrinkage.* The layer's factor, max(0, 1 - s² / (n |c|²)), depends on lengths of embeddings. Logits determine them
    only if W has full column rank (at least as many classes as features): then h = W⁺ (W h). So
    `shrinkage="james-stein"` needs the bias and a `weight` of full column rank. `"james-stein-logits"` needs neither:
    it is the same estimate from the mean and variance of the logits. It also is 0 for one sample and tends to 1, but it
    is not the layer's factor.

    Rows with NaN or Inf stay NaN or Inf and are excluded from the mean, with a warning; `rejected_` counts them. An
    object is not thread-safe: use one per thread and `merge` them.

    Args:
        bias: Bias of the head, (C,).
        weighting: "sample" counts every sample equally, "batch" every batch.
        alpha: Weight of a new batch in a moving average, in [0, 1] (NEO-Continual).
        debias: Correct the bias of the moving average towards its zero start.
        uniform_bias: Use 1/C instead of the bias (NEO-MSE).
        shrinkage: None, "james-stein" or "james-stein-logits".
        weight: Weight of the head, (C, d), for "james-stein".

    Attributes:
        mean_: Running mean of the bias-free logits, (C,) float64.
        count_: Number of samples seen.
        batches_: Number of batches seen.
        rejected_: Number of rows excluded.
        n_features_in_: Number of classes C.
    """

    def __init__(
        self,
        bias: Any = None,
        *,
        weighting: Weighting = "sample",
        alpha: float | None = None,
        debias: bool = False,
        uniform_bias: bool = False,
        shrinkage: LogitShrinkage | None = None,
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
        """Create one for the logits of an ONNX file, with the bias of its last Gemm or MatMul + Add.

        Args:
            path: The file. It is read, not run; this needs the package `onnx`.
            output: Name of the output with the logits; by default the first.
            **options: Options of the constructor; the weight is filled in if shrinkage needs it.

        Raises:
            HeadNotFoundError: The logits do not come from a linear layer.
            AlreadyAdaptedError: The file is adaptive, or has a centroid folded in.
        """
        from neotta.deploy._onnx_head import read_head

        weight, bias = read_head(path, output)
        if options.get("shrinkage") == "james-stein":
            options.setdefault("weight", weight)
        return cls(bias, **options)

    # ---- adapting and re-centering

    def recenter(self, logits: Any, adapt: bool = True) -> Array:
        """Adapt to a batch of logits, unless `adapt=False`, and re-center it; (B, C) to (B, C), B may be 0."""
        if adapt:
            self.partial_fit(logits)
        elif not self.__sklearn_is_fitted__():
            return self._answer(matrix(logits, type(self).__name__), 0.0)
        return self.transform(logits)

    def fit(self, X: Any, y: Any = None) -> LogitRecenter:
        """Reset, then add one batch, (B, C)."""
        if matrix(X, type(self).__name__).shape[0] == 0:
            raise InputError(f"Found array with 0 sample(s): a minimum of 1 is required by {type(self).__name__}.fit")
        self.reset()
        return self.partial_fit(X)

    def partial_fit(self, X: Any, y: Any = None) -> LogitRecenter:
        """Add a batch, (B, C); B may be 0."""
        rows = self._rows(X)
        rule = self._begin(rows.shape[1])
        if len(rows) == 0:
            return self
        wide = rows.astype(np.float64)
        finite = moments.usable(wide, moments.limit(wide.dtype))
        free = np.where(finite[:, None], wide, 0.0) - bias_of(self.bias, rows.shape[1])
        new = moments.summarise(free, finite=finite, variance=rule.variance, squares=self._squares)
        if new.rejected:
            warnings.warn(
                f"{new.rejected} of {len(rows)} rows of logits contain NaN or Inf, or are too large: excluded",
                RuntimeWarning,
                stacklevel=2,
            )
        moments.combine(self._moments, new, rule.share(self._moments, new), self._squares)
        return self

    def transform(self, X: Any) -> Array:
        """Re-center logits, (B, C), with the current mean; the dtype is kept."""
        return self._answer(self._rows(X), self.centre())

    def fit_transform(self, X: Any, y: Any = None) -> Array:
        """Call `fit`, then `transform`."""
        return self.fit(X).transform(X)

    def centre(self) -> Array:
        """The vector that is subtracted from the bias-free logits, (C,): W c."""
        self._need_state()
        centre: Array = self._rule(self.n_features_in_).centre(self._moments, self._squares)
        return np.array(centre)

    def _answer(self, rows: Array, centre: Array | float) -> Array:
        answer = rows.astype(np.float64) - centre
        if self.uniform_bias:
            answer += 1.0 / rows.shape[1] - bias_of(self.bias, rows.shape[1])
        return answer.astype(rows.dtype)

    def _rows(self, X: Any) -> Array:
        return matrix(X, type(self).__name__, getattr(self, "n_features_in_", None))

    def _squares(self, free: Array) -> Array:
        """Squared lengths of bias-free logits (..., C), or of their embeddings (..., d)."""
        return moments.squares(free @ self._inverse.T if self.shrinkage == "james-stein" else free)  # type: ignore[no-any-return]

    # ---- the state

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_moments")

    @property
    def mean_(self) -> Array:
        """Running mean of the bias-free logits, (C,) float64."""
        return np.array(self._state("mean"))

    @property
    def count_(self) -> int:
        """Number of samples seen."""
        return int(self._state("count"))

    @property
    def batches_(self) -> int:
        """Number of batches seen."""
        return int(self._state("batches"))

    @property
    def rejected_(self) -> int:
        """Number of rows excluded because of NaN or Inf."""
        return int(self._state("rejected"))

    def _state(self, name: str) -> Any:
        if not self.__sklearn_is_fitted__():
            raise AttributeError(f"this {type(self).__name__} is not fitted yet: it has no {name}_")
        return getattr(self._moments, name)

    def reset(self) -> None:
        """Forget everything."""
        for name in ("_moments", "n_features_in_", "_inverse", "_shrinkage"):
            self.__dict__.pop(name, None)

    def merge(self, other: LogitRecenter) -> None:
        """Add the samples of another object, exactly as if they had been seen here.

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
        classes = other.n_features_in_
        if getattr(self, "n_features_in_", classes) != classes or self._kind(classes) != other._kind(classes):
            raise StateMismatchError("states with different options, bias or number of classes cannot be merged")
        rule = self._begin(classes)
        rule.merge(self._moments, other._moments, self._squares)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the state to a safetensors file, atomically."""
        self._need_state()
        write_arrays(path, self._moments._asdict(), self._kind(self.n_features_in_))

    def load(self, path: str | os.PathLike[str]) -> None:
        """Load a file written by `save`; if it does not fit, raise an error and change nothing."""
        arrays, about = read_arrays(path)
        if about.get("kind") != "logits":
            raise StateMismatchError(f"{os.fspath(path)!r} does not contain the state of a {type(self).__name__}")
        classes = about.get("classes")
        if isinstance(classes, int):
            arrays = completed(MeanRule().fields(classes), arrays)
        if not isinstance(classes, int) or {name: array.shape for name, array in arrays.items()} != _shapes(classes):
            raise StateMismatchError(f"{os.fspath(path)!r} does not contain the moments of logits")
        wrong = [name for name, value in self._kind(classes).items() if about.get(name) != value]
        if wrong:
            raise StateMismatchError(f"{os.fspath(path)!r} was saved with another {' and '.join(wrong)}")
        fields = MeanRule().fields(classes)
        check_fields(fields, arrays, _empty(classes)._asdict())
        self.reset()
        self._begin(classes)
        self._moments = Moments(**{name: np.array(array) for name, array in arrays.items()})

    def _kind(self, classes: int) -> dict[str, Any]:
        """What two states must have in common."""
        names = ("weighting", "alpha", "debias", "uniform_bias", "shrinkage")
        options = {name: getattr(self, name) for name in names}
        head = fingerprint({"bias": bias_of(self.bias, classes)})
        return {"kind": "logits", "classes": classes, "options": options, "bias": head}

    def _begin(self, classes: int) -> MeanRule:
        """Validate the options, and create an empty state if there is none."""
        rule = self._rule(classes)
        if not self.__sklearn_is_fitted__():
            self.n_features_in_ = classes
            self._shrinkage = self.shrinkage
            self._moments = _empty(classes)
        return rule

    def _rule(self, classes: int) -> MeanRule:
        """The rule of these options, validated only on use, as scikit-learn requires."""
        if self.shrinkage not in (None, *get_args(LogitShrinkage)):
            raise OptionError(f"shrinkage is {self.shrinkage!r}: expected None, 'james-stein' or 'james-stein-logits'")
        rule = MeanRule(self.weighting, self.alpha, self.debias, "james-stein" if self.shrinkage else None)
        bias_of(self.bias, classes)
        if self.__sklearn_is_fitted__() and self.shrinkage != self._shrinkage:
            raise OptionError("shrinkage needs the variance of all samples: call reset() before changing it")
        if self.shrinkage == "james-stein" and not hasattr(self, "_inverse"):
            self._inverse = inverse_of(self.weight, classes)
        return rule

    def _need_state(self) -> None:
        if not self.__sklearn_is_fitted__():
            raise StateError(f"this {type(self).__name__} is not fitted yet: call partial_fit or recenter first")


def _empty(classes: int) -> Moments:
    zero = np.array(0.0)
    return Moments(np.array(0), np.array(0), np.array(0), mean=np.zeros(classes), scatter=zero, discount=zero.copy())


def _shapes(classes: int) -> dict[str, tuple[int, ...]]:
    return {name: field.shape for name, field in MeanRule().fields(classes).items()}

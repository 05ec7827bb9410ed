"""The running mean of bias-free logits, in NumPy: kept, shrunk, merged and saved as a `Centroid` is in torch."""

from __future__ import annotations

import math
import os
from typing import Any, Literal, TypeVar

import numpy as np

from neotta.deploy._estimator import Estimator
from neotta.deploy._logit_options import bias_of, check_rule, inverse_of
from neotta.errors import InputError, OptionError, StateError, StateMismatchError
from neotta.neo.statefile import Array, fingerprint, read_arrays, write_arrays

Shrinkage = Literal["james-stein", "james-stein-logits"]
Self = TypeVar("Self", bound="LogitState")
_STATE = ("mean_", "scatter_", "count_", "batches_", "rejected_")


class LogitState(Estimator):
    """What a `LogitRecenter` knows; see there for the parameters."""

    bias: Any
    weighting: Literal["sample", "batch"]
    alpha: float | None
    debias: bool
    uniform_bias: bool
    shrinkage: Shrinkage | None
    weight: Any

    mean_: Array
    scatter_: float
    count_: int
    batches_: int
    rejected_: int
    n_features_in_: int

    def centre(self) -> Array:
        """The vector that is subtracted from the bias-free logits, (C,): W c."""
        self._need_state()
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

    # ---- as a whole

    @property
    def _fitted(self) -> bool:
        return hasattr(self, "mean_")

    def reset(self) -> None:
        """Forget everything."""
        for name in (*_STATE, "n_features_in_", "_inverse", "_shrinkage"):
            self.__dict__.pop(name, None)

    def merge(self: Self, other: Self) -> None:
        """Take in the state of another, exactly as if its samples had come here.

        Raises:
            OptionError: A moving average cannot be merged: it depends on the order of its batches.
            StateMismatchError: The two count in different ways or differ in size.
        """
        if not isinstance(other, LogitState):
            raise InputError(f"a {type(self).__name__} merges with another, got {type(other).__name__}")
        if self.alpha is not None or other.alpha is not None:
            raise OptionError("a moving average cannot be merged: it depends on the order of its batches")
        if not other._fitted:
            return
        classes = other.n_features_in_
        if getattr(self, "n_features_in_", classes) != classes or self._kind(classes) != other._kind(classes):
            raise StateMismatchError("states of other options, bias or number of classes cannot be merged")
        self._begin(classes)
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
        self._need_state()
        write_arrays(path, {name: np.asarray(getattr(self, name)) for name in _STATE}, self._kind(self.n_features_in_))

    def load(self, path: str | os.PathLike[str]) -> None:
        """Go on from a file of `save`; if it does not fit, an error and no change."""
        arrays, about = read_arrays(path)
        if about.get("kind") != "logits":
            raise StateMismatchError(f"{os.fspath(path)!r} holds no state of a {type(self).__name__}")
        wrong = [name for name, value in self._kind(about["classes"]).items() if about.get(name) != value]
        if wrong:
            raise StateMismatchError(f"{os.fspath(path)!r} was saved with another {' and '.join(wrong)}")
        state = {name: array if name == "mean_" else array.item() for name, array in arrays.items()}
        self.reset()
        self._begin(about["classes"])
        vars(self).update(state)

    def _kind(self, classes: int) -> dict[str, Any]:
        """What two states of so many classes must have in common."""
        names = ("weighting", "alpha", "debias", "uniform_bias", "shrinkage")
        options = {name: getattr(self, name) for name in names}
        head = fingerprint({"bias": bias_of(self.bias, classes)})
        return {"kind": "logits", "classes": classes, "options": options, "bias": head}

    def _begin(self, classes: int) -> None:
        """Check the options, and begin with an empty state unless there is one."""
        self._check(classes)
        if self._fitted:
            return
        self.n_features_in_ = classes
        self._shrinkage = self.shrinkage
        self.mean_ = np.zeros(classes)
        self.scatter_ = 0.0
        self.count_ = self.batches_ = self.rejected_ = 0

    # ---- checking

    def _check(self, classes: int) -> None:
        """Check the options: scikit-learn wants that done only when they are used."""
        check_rule(self.weighting, self.alpha, self.debias, self.shrinkage)
        bias_of(self.bias, classes)
        if self._fitted and self.shrinkage != self._shrinkage:
            raise OptionError("shrinkage needs the variance from the first sample on: reset() before changing it")
        if self.shrinkage == "james-stein" and not hasattr(self, "_inverse"):
            self._inverse = inverse_of(self.weight, classes)

    def _need_state(self) -> None:
        if not self._fitted:
            raise StateError(f"this {type(self).__name__} is not fitted yet: call partial_fit or recenter first")

"""The state of `LogitRecenter`: what was seen, and how it is merged, saved and loaded."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from neotta.deploy._logit_memory import LogitMemory
from neotta.deploy._logit_options import OPTIONS, LogitOptions
from neotta.errors import InputError, OptionError, StateError, StateMismatchError
from neotta.neo.statefile import Array, read_arrays, write_arrays
from neotta.neo.stream_ids import StreamId


class FittedLogits(LogitOptions):
    """The moments of the logits seen so far, one set per stream."""

    n_features_in_: int
    _memory: LogitMemory
    _asked: list[Any]

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_memory")

    @property
    def mean_(self) -> Array:
        """Mean of the bias-free logits, (C,) float64."""
        mean = self._fitted("mean_").states.get(None)["mean"]
        return np.array(mean if mean.ndim == 1 else mean[0])

    @property
    def count_(self) -> int:
        """Number of samples seen, in all streams."""
        return self._fitted("count_").total("count")

    @property
    def batches_(self) -> int:
        """Number of batches seen; a batch counts once for each of its streams."""
        return self._fitted("batches_").total("batches")

    @property
    def rejected_(self) -> int:
        """Number of rows excluded because of NaN or Inf."""
        return self._fitted("rejected_").total("rejected")

    def _fitted(self, name: str) -> LogitMemory:
        if not self.__sklearn_is_fitted__():
            raise AttributeError(f"this {type(self).__name__} is not fitted yet: it has no {name}")
        return self._memory

    def streams(self) -> list[StreamId]:
        """The streams that were seen."""
        return self._memory.states.ids if self.__sklearn_is_fitted__() else []

    def reset(self, stream: StreamId | None = None) -> None:
        """Forget one stream, or everything."""
        if stream is not None:
            self._need_state()
            self._memory.states.forget(stream)
            return
        for name in ("_memory", "_asked", "n_features_in_"):
            self.__dict__.pop(name, None)

    def merge(self, other: FittedLogits) -> None:
        """Add the samples of another object, exactly as if they had been seen here, stream by stream.

        With neo-stream, the moments over all time add up; the window, the label prior and the last sample are reset.

        Raises:
            OptionError: One of them is a moving average, which depends on the order of its batches.
            StateMismatchError: They differ in options, bias or number of classes.
        """
        if not isinstance(other, FittedLogits):
            raise InputError(f"expected a {type(self).__name__} to merge, got {type(other).__name__}")
        if self.alpha is not None or other.alpha is not None:
            raise OptionError("a moving average cannot be merged: it depends on the order of its batches")
        if not other.__sklearn_is_fitted__():
            return
        classes = other.n_features_in_
        if getattr(self, "n_features_in_", classes) != classes or self._kind(classes) != other._kind(classes):
            raise StateMismatchError("states with different options, bias or number of classes cannot be merged")
        memory = self._begin(classes)
        theirs = other._memory.states
        for stream in (None, *theirs.ids):
            state = theirs.get(stream)
            if state["count"] or state["rejected"]:
                memory.merge(stream, state)

    def save(self, path: str | os.PathLike[str], *, stream: StreamId | None = None) -> None:
        """Save the state to a safetensors file, atomically.

        Args:
            path: The file.
            stream: Save only this stream, as the state of an object that saw nothing else; by default all of them.
        """
        self._need_state()
        states, kind = self._memory.states, self._kind(self.n_features_in_)
        if stream is None and states.ids:
            write_arrays(path, states.everything(), {**kind, "streams": True})
        else:
            write_arrays(path, states.known(stream), kind)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Load a file written by `save`; if it does not fit, raise an error and change nothing."""
        arrays, about = read_arrays(path)
        if about.get("kind") != "logits":
            raise StateMismatchError(f"{os.fspath(path)!r} does not contain the state of a {type(self).__name__}")
        classes = about.get("classes")
        if not isinstance(classes, int) or isinstance(classes, bool) or classes < 1:
            raise StateMismatchError(f"{os.fspath(path)!r} does not contain the moments of logits")
        about.setdefault("rule", "neo")  # files of earlier versions
        wrong = [name for name, value in self._kind(classes).items() if about.get(name) != value]
        if wrong:
            raise StateMismatchError(f"{os.fspath(path)!r} was saved with another {' and '.join(wrong)}")
        memory, many = self._new(classes), bool(about.get("streams"))
        try:
            state = memory.check(arrays, many)
        except StateMismatchError as error:
            raise StateMismatchError(f"{os.fspath(path)!r} does not contain the moments of logits: {error}") from error
        if many:
            memory.states.replace(state)
        else:
            memory.states.put({None: state})
        self.reset()
        self._begin(classes)
        self._memory = memory

    def _begin(self, classes: int) -> LogitMemory:
        """Validate the options, and create an empty state if there is none."""
        asked = [getattr(self, name) for name in ("bias", "rule", "weight", *OPTIONS["neo"], *OPTIONS["neo-stream"])]
        if self.__sklearn_is_fitted__() and all(a is b for a, b in zip(asked, self._asked, strict=True)):
            return self._memory
        new = self._new(classes)
        if not self.__sklearn_is_fitted__():
            self.n_features_in_, self._memory = classes, new
        elif self._memory.fields != new.fields or _shrinkage(self._memory) != _shrinkage(new):
            raise OptionError("the state does not contain what this rule or shrinkage needs: call reset() to change it")
        elif getattr(self._memory.rule, "classes", None) != getattr(new.rule, "classes", None):
            raise OptionError("the state was measured from another reference: call reset() to change it")
        self._memory.rule, self._memory.bias, self._asked = new.rule, new.bias, asked
        return self._memory

    def _need_state(self) -> None:
        if not self.__sklearn_is_fitted__():
            raise StateError(f"this {type(self).__name__} is not fitted yet: call partial_fit or recenter first")


def _shrinkage(memory: LogitMemory) -> tuple[Any, bool]:
    """Which squares the scatter of a state is made of."""
    return getattr(memory.rule, "shrinkage", None), getattr(memory.rule, "inverse", None) is not None

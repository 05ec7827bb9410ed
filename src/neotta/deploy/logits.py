"""Re-centering of logits, as NumPy arrays, for any runtime that returns logits.

W (h - c) + b = (W h + b) - W c, and W c is the mean of the bias-free logits W h. So the state is a few vectors of C
numbers; the model and its embeddings are not needed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch

from neotta.errors import InputError, OptionError, StateError, StateMismatchError, UnknownMethodError
from neotta.neo import context
from neotta.neo.files import entries, states_in
from neotta.neo.merge import merge_tables
from neotta.neo.reference_file import Reference, as_reference, for_logits
from neotta.neo.statefile import Array, fingerprint, read_state, write_state
from neotta.neo.stream_ids import StreamId, checked, checked_weights, for_rows
from neotta.neo.streams import Streams
from neotta.neo.variants import VARIANTS, rule_of

METHODS = [method for method in VARIANTS if method != "neo-bn"]  # which normalises inside of the model


class LogitRecenter:
    """Re-center logits as an adapted model does, behind any runtime that returns logits.

    `recenter(logits)` adapts and re-centers, as the layer does. Everything is computed in float64, and the results
    equal those of the layer up to rounding. Each answer of `"neo-stream"` depends on the rows before it, so call it
    with samples in order of arrival.

    *Input.* Logits, (B, C), or the decision function of a binary classifier, (B,): the answer then is (B,), too.
    Probabilities are rejected; their logarithms are logits. With neo-stream, fewer than three classes get the plain
    answer: shift and label prior are then one number.

    *Bias.* The head's bias must be known; `from_onnx` reads it from the file. With `bias=None`, the bias is part of the
    mean and is subtracted too: the result is W (h - c). That is exact for a head without bias and for neo-mse; a
    classifier trained on unbalanced classes loses their priors.

    *Streams.* The first call that learns decides whether samples have streams; `reset` undoes that.

    Rows with NaN or Inf stay NaN or Inf and are excluded, with a warning; `rejected` counts them. An object is not
    thread-safe: use one per thread and `merge` them.

    ```python
    recenter = neotta.deploy.LogitRecenter(bias=[0.0, 0.2, -0.2])
    logits = recenter.recenter(numpy.random.default_rng(0).normal(size=(8, 3)))
    ```

    Args:
        bias: Bias of the head, (C,).
        method: `"neo-stream"`, `"neo"`, `"neo-continual"` or `"neo-mse"`, as in `neotta.adapt`.
        weight: Weight of the head, (C, d), to check that the reference belongs to it.
        reference: Where clean data lies, as `neotta.reference(model, images)` measured it, or the file it was saved to:
            re-center towards it instead of the origin; neo-stream only.
        **options: The method's options, except `shrinkage`, which needs the lengths of embeddings.

    Raises:
        OptionError: An option is unknown or invalid.
    """

    def __init__(
        self,
        bias: Any = None,
        method: str = "neo-stream",
        *,
        weight: Any = None,
        reference: Reference | str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> None:
        if method not in METHODS:
            raise UnknownMethodError(str(method), METHODS)
        self.method, self.options = method, rule_of(method, options)
        if self.options.given().get("shrinkage"):
            raise OptionError("shrinkage needs the lengths of embeddings, which logits do not show: adapt the model")
        if reference is not None and method != "neo-stream":
            raise OptionError(
                "a reference needs 'neo-stream' here: NEO scales it by how far embeddings shrink; logits do not show it"
            )
        self.bias = None if bias is None else np.atleast_1d(_numbers("bias", bias, 1))
        self._weight = None if weight is None else _numbers("weight", weight, 2)
        self._reference = None if reference is None else as_reference(reference)
        self._streams: Streams | None = None
        self._origin = torch.zeros(1)

    @classmethod
    def from_onnx(
        cls, path: str | os.PathLike[str], method: str = "neo-stream", *, output: str | None = None, **options: Any
    ) -> LogitRecenter:
        """Create one for the logits of an ONNX file, with the bias of its last Gemm or MatMul + Add.

        Args:
            path: The file. It is read, not run; this needs the package `onnx`.
            method: See `LogitRecenter`.
            output: Name of the output with the logits; by default the first.
            **options: Further arguments of `LogitRecenter`.

        Raises:
            HeadNotFoundError: The logits do not come from a linear layer.
            AlreadyAdaptedError: The file is adaptive, or was adapted and folded.
        """
        from neotta.deploy.onnx.head import read_head

        weight, bias = read_head(path, output)
        return cls(bias, method, **{"weight": weight, **options})

    # ---- adapting and re-centering

    def recenter(
        self,
        logits: Any,
        adapt: bool = True,
        *,
        stream: StreamId | Iterable[StreamId] | None = None,
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
        known = self._streams
        rows, flat = _matrix(logits, None if known is None else known.size)
        classes = rows.shape[1]
        ids = None if stream is None else for_rows(checked(stream), len(rows))
        numbers = None if weights is None else torch.from_numpy(checked_weights(weights, len(rows)))
        answer = rows.astype(np.float64)
        if adapt or known is not None:
            streams, samples = self._begin(classes, ids is not None), torch.from_numpy(rows.astype(np.float64))
            if streams.rule.space == "embeddings":
                samples = samples - self._origin
            with nullcontext() if ids is None else context.streams(ids):
                answer -= streams.step(samples, self._origin, adapt=adapt, weights=numbers).numpy()
        if self.method == "neo-mse":
            answer += 1.0 / classes - self._bias_for(classes)
        answer = answer.astype(rows.dtype)
        return answer[:, 0] if flat else answer

    def offset(self, stream: StreamId | None = None) -> Array:
        """The vector that is subtracted from the logits, (C,): W c.

        The label prior of neo-stream is not part of it.
        """
        streams = self._started()
        return np.asarray(streams.rule.offset(streams.state(stream))[0].numpy())

    # ---- the state: what was seen, and how it is merged, saved and loaded

    @property
    def count(self) -> int:
        """Number of samples seen, in all streams."""
        return 0 if self._streams is None else self._streams.total()

    @property
    def rejected(self) -> int:
        """Number of rows excluded because of NaN, Inf or their size."""
        return 0 if self._streams is None else int(self._streams.everything()[1][:, 1].sum())

    def streams(self) -> list[StreamId]:
        """The streams that were seen."""
        return [] if self._streams is None else list(self._streams.counts())

    def reset(self, stream: StreamId | None = None) -> None:
        """Forget one stream, or everything."""
        if stream is None:
            self._streams = None
        else:
            self._started().reset(stream)

    def merge(self, other: LogitRecenter) -> None:
        """Add the samples of another object, exactly as if they had been seen here, stream by stream.

        With neo-stream, the moments over all time add up; the window, the label prior and the last sample are reset.

        Raises:
            OptionError: They are moving averages, which depend on the order of their batches.
            StateMismatchError: They differ in options, bias or number of classes.
        """
        if not isinstance(other, LogitRecenter):
            raise InputError(f"expected a {type(self).__name__} to merge, got {type(other).__name__}")
        theirs = other._streams
        if theirs is None:
            return
        known = theirs if self._streams is None else self._streams
        if known.size != theirs.size or self._about(theirs.size) != other._about(theirs.size):
            raise StateMismatchError("states with different options, bias or number of classes cannot be merged")
        if not theirs.rule.mergeable:
            raise OptionError("a moving average cannot be merged: it depends on the order of its batches")
        mine = self._begin(theirs.size, theirs.many)
        mine.replace(*merge_tables([mine.everything(), theirs.everything()], mine.layout, mine.rule, mine.many))

    def save(self, path: str | os.PathLike[str], *, stream: StreamId | None = None) -> None:
        """Save the state to a safetensors file, atomically.

        Args:
            path: The file.
            stream: Save only this stream, as the state of an object that saw nothing else; by default all of them.
        """
        streams = self._started()
        many = streams.many and stream is None
        ids, states = streams.everything() if stream is None else ([], streams.state(stream))
        about = {**self._about(streams.size), "streams": many}
        write_state(path, entries(streams.layout, ids, states, many=many), about)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Load a file written by `save`; if it does not fit, raise an error and change nothing."""
        tensors, about = read_state(path)
        if about.get("kind") != "logits":
            raise StateMismatchError(f"{os.fspath(path)!r} does not contain the state of a {type(self).__name__}")
        classes = about.get("classes")
        if not isinstance(classes, int) or isinstance(classes, bool) or classes < 1:
            raise StateMismatchError(f"{os.fspath(path)!r} does not say of how many classes it is")
        wrong = [name for name, value in self._about(classes).items() if about.get(name) != value]
        if wrong:
            raise StateMismatchError(f"{os.fspath(path)!r} was saved with another {' and '.join(wrong)}")
        many, before = bool(about.get("streams")), self._streams
        self._streams = None
        try:
            streams = self._begin(classes, many)
            streams.replace(*states_in(streams.layout, streams.rule, tensors, many))
        except StateError as error:
            self._streams = before
            raise type(error)(f"{os.fspath(path)!r} does not contain a state of logits: {error}") from error

    def _begin(self, classes: int, many: bool) -> Streams:
        if self._streams is None:
            known = None
            if self._reference is not None:
                known = for_logits(self._reference, classes, self.bias, self._weight)
            rule = self.options.knowing(None if known is None else known.clean)
            origin = self._bias_for(classes) if known is None else known.origin
            self._origin = torch.from_numpy(np.array(origin, np.float64))
            self._streams = Streams(rule, classes, many=many)
        if self._streams.many is not many:
            so_far, now = ("without", "with") if many else ("with", "without")
            raise InputError(
                f"samples came {so_far} a stream so far, these come {now} one: use two objects, or reset()"
            )
        return self._streams

    def _started(self) -> Streams:
        if self._streams is None:
            raise StateError(f"this {type(self).__name__} has no state yet: call recenter first")
        return self._streams

    def _bias_for(self, classes: int) -> Array:
        if self.bias is not None and len(self.bias) != classes:
            raise OptionError(f"bias has {len(self.bias)} numbers, but there are {classes} classes")
        return np.zeros(classes) if self.bias is None else self.bias

    def _about(self, classes: int) -> dict[str, Any]:
        """What two states must have in common."""
        options = self.options.model_dump(mode="json")
        if self._reference is not None:
            options["reference"] = self._reference.digest
        bias = fingerprint({"bias": self._bias_for(classes)})
        return {"kind": "logits", "classes": classes, "method": self.method, "options": options, "bias": bias}


def _numbers(name: str, values: Any, dimensions: int) -> Array:
    try:
        numbers = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values, np.float64)
    except (TypeError, ValueError) as error:
        raise OptionError(f"{name} must be numbers: {error}") from error
    if numbers.ndim > dimensions or not np.isfinite(numbers).all():
        raise OptionError(f"{name} must be finite numbers of {dimensions} dimensions, got shape {numbers.shape}")
    return numbers


def _matrix(values: Any, columns: int | None) -> tuple[Array, bool]:
    """Logits, (B, C), in a floating dtype; and whether they are a binary decision function, (B,), as one column."""
    table = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
    if not np.issubdtype(table.dtype, np.floating):
        if table.dtype.kind not in "iub":
            raise InputError(f"expected logits, real numbers of (samples, classes), got {table.dtype}")
        table = table.astype(np.float64)
    flat = table.ndim == 1 and columns in (None, 1)
    table = table[:, None] if flat else table
    if table.ndim != 2 or table.shape[1] == 0 or columns not in (None, table.shape[1]):
        raise InputError(f"expected logits of (samples, {columns or 'classes'}), got shape {table.shape}")
    rows = table[np.isfinite(table).all(1)].astype(np.float64)
    close = max(1e-5, 10 * table.shape[1] * float(np.finfo(table.dtype).eps))
    sums_to_one = len(rows) > 0 and ((rows >= 0) & (rows <= 1)).all() and (abs(rows.sum(1) - 1) <= close).all()
    if sums_to_one and table.shape[1] > 1:
        raise InputError(
            "expected logits, got probabilities: all numbers are between 0 and 1, and every row sums to 1. Pass the "
            "model's logits, or np.log(probabilities + 1e-12)"
        )
    return table, flat

"""Re-centering of logits, as NumPy arrays, for any runtime that returns logits.

W (h - c) + b = (W h + b) - W c, and W c is the mean of the bias-free logits W h. So the state is a few vectors of C
numbers; the model and its embeddings are not needed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch

from neotta.errors import InputError, OptionError, StateError, UnknownMethodError
from neotta.neo import context
from neotta.neo.codec import NAMELESS, StateFile
from neotta.neo.files import file_of, fitting, opened, put
from neotta.neo.merge import merge
from neotta.neo.output_head import OutputHead
from neotta.neo.reference_file import Reference, as_reference, for_logits
from neotta.neo.statefile import Array
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
        self._neo: OutputHead | None = None

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
        known = self._neo
        rows, flat = _matrix(logits, None if known is None else known.out_features)
        ids = None if stream is None else for_rows(checked(stream), len(rows))
        numbers = None if weights is None else checked_weights(weights, len(rows))
        neo = known or self._begin(rows.shape[1], ids is not None)
        if neo.streams.many is not (ids is not None):
            so_far, now = ("with", "without") if neo.streams.many else ("without", "with")
            raise InputError(
                f"samples came {so_far} a stream so far, these come {now} one: use two objects, or reset()"
            )
        self._neo = neo if adapt else known
        neo.adapting = adapt
        samples = torch.from_numpy(rows.astype(np.float64))
        with ExitStack() as settings, torch.no_grad():
            if ids is not None:
                settings.enter_context(context.streams(ids))
            if numbers is not None:
                settings.enter_context(context.rows(numbers))
            answer: Array = neo(samples, hooked=True).numpy().astype(rows.dtype)
        return answer[:, 0] if flat else answer

    def offset(self, stream: StreamId | None = None) -> Array:
        """The vector that is subtracted from the logits, (C,): W c.

        The label prior of neo-stream is not part of it.
        """
        return np.asarray(self._started().offset(stream).numpy())

    # ---- the state: what was seen, and how it is merged, saved and loaded

    @property
    def count(self) -> int:
        """Number of samples seen, in all streams."""
        return 0 if self._neo is None else self._neo.count

    @property
    def rejected(self) -> int:
        """Number of rows excluded because of NaN, Inf or their size."""
        return 0 if self._neo is None else int(self._neo.streams.everything()[1][:, 1].sum())

    def streams(self) -> list[StreamId]:
        """The streams that were seen."""
        return [] if self._neo is None else list(self._neo.streams.counts())

    def reset(self, stream: StreamId | None = None) -> None:
        """Forget one stream, or everything."""
        if stream is None:
            self._neo = None
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
        if other._neo is None:
            return
        states = other._file() if self._neo is None else merge([self._file(), other._file()])
        self._take(states, "the other's state")

    def save(self, path: str | os.PathLike[str], *, stream: StreamId | None = None) -> None:
        """Save the state as `neotta.save` does, atomically: `neotta.load` takes it, if the rule acts on logits.

        Args:
            path: The file.
            stream: Save only this stream, as the state of an object that saw nothing else; by default all of them.
        """
        self._file(stream).save(path)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Load a state of the same head, whatever wrote it; if it does not fit, raise an error and change nothing.

        A mean of embeddings becomes one of logits by the weight of the head, if that is known.
        """
        self._take(*opened(path))

    def _file(self, stream: StreamId | None = None) -> StateFile:
        return file_of(self.method, {NAMELESS: self._started()}, stream=stream, reference=self._reference)

    def _take(self, file: StateFile, source: str) -> None:
        known = self.bias if self._weight is None else self._weight
        neo = self._begin(next(iter(file.heads.values())).size if known is None else len(known), file.many)
        put(fitting(file, source, self.method, {NAMELESS: neo}, reference=self._reference))
        self._neo = neo

    def _begin(self, classes: int, many: bool) -> OutputHead:
        if self.bias is not None and len(self.bias) != classes:
            raise OptionError(f"bias has {len(self.bias)} numbers, but there are {classes} classes")
        known = None
        if self._reference is not None:
            known = for_logits(self._reference, classes, self.bias, self._weight)
        streams = Streams(self.options, classes, many=many)
        return OutputHead.of(self._weight, self.bias, streams, uniform_bias=self.method == "neo-mse", reference=known)

    def _started(self) -> OutputHead:
        if self._neo is None:
            raise StateError(f"this {type(self).__name__} has no state yet: call recenter first")
        return self._neo


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

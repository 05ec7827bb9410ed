"""Validation of the input of `LogitRecenter`, and its scikit-learn base class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from neotta.errors import InputError, OptionError
from neotta.neo.statefile import Array

if TYPE_CHECKING:

    class Estimator:
        """Base class of an estimator."""

else:
    try:
        from sklearn.base import BaseEstimator as _Base
    except ImportError:
        _Base = object

    class Estimator(_Base):
        """A scikit-learn estimator, if scikit-learn is installed."""

        def __sklearn_tags__(self) -> Any:
            from sklearn.utils import TransformerTags

            tags = super().__sklearn_tags__()
            tags.transformer_tags = TransformerTags(preserves_dtype=["float64", "float32"])
            tags.input_tags.allow_nan = True
            return tags


def bias_of(bias: Any, classes: int) -> Array:
    """Convert the bias to an array, (C,); zeros if there is none."""
    if bias is None:
        return np.zeros(classes)
    numbers = np.atleast_1d(_numbers("bias", bias))  # that of a binary decision function may be one number
    if numbers.shape != (classes,) or not np.isfinite(numbers).all():
        raise OptionError(f"bias must be {classes} finite numbers, one per class, got shape {numbers.shape}")
    return numbers


def weight_of(weight: Any, classes: int) -> Array:
    """Convert the weight of the head to an array, (C, d)."""
    numbers = _numbers("weight", weight)
    if numbers.ndim != 2 or len(numbers) != classes or not np.isfinite(numbers).all():
        raise OptionError(f"weight must be finite numbers of shape ({classes}, d), got shape {numbers.shape}")
    return numbers


def _numbers(name: str, values: Any) -> Array:
    """Convert an array, a list or a torch parameter to float64."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
    try:
        return np.asarray(values, np.float64)
    except (TypeError, ValueError) as error:
        raise OptionError(f"{name} must be numbers: {error}") from error


def matrix(values: Any, name: str, columns: int | None = None) -> tuple[Array, bool]:
    """Validate logits, (B, C), where C must be `columns` if given. Floating dtypes are kept.

    A binary decision function, (B,), becomes one column; the second result says that it was one. The error messages
    follow scikit-learn, whose estimator checks match them.
    """
    if hasattr(values, "toarray"):
        raise InputError(f"{name} takes a dense array, got a sparse {type(values).__name__}: call its toarray()")
    table = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
    if np.iscomplexobj(table):
        raise InputError(f"Complex data not supported: {name} takes real numbers")
    if not np.issubdtype(table.dtype, np.floating):
        try:
            table = table.astype(np.float64)
        except ValueError as error:  # other types raise a TypeError
            raise InputError(f"{name} takes numbers: {error}") from error
    flat = table.ndim == 1 and columns in (None, 1)
    if flat:
        table = table[:, None]
    if table.ndim != 2:
        raise InputError(
            f"Expected 2D array, got {table.ndim}D array instead: {name} takes (samples, classes). "
            "Reshape your data with x.reshape(1, -1) if it is one sample"
        )
    if table.shape[1] == 0:
        raise InputError(f"0 feature(s) (shape={table.shape}) while a minimum of 1 is required by {name}.")
    if columns is not None and table.shape[1] != columns:
        raise InputError(f"X has {table.shape[1]} features, but {name} is expecting {columns} features as input")
    _check_logits(table, name)
    return table, flat


def _check_logits(table: Array, name: str) -> None:
    """Reject rows, (B, C), that all are distributions."""
    if table.shape[1] < 2 or len(table) == 0 or not np.isfinite(table).any():
        return
    rows = table[np.isfinite(table).all(1)].astype(np.float64)
    close = max(1e-5, 10 * table.shape[1] * float(np.finfo(table.dtype).eps))
    if len(rows) and ((rows >= 0) & (rows <= 1)).all() and (abs(rows.sum(1) - 1) <= close).all():
        raise InputError(
            f"{name} takes logits, got probabilities: all numbers are between 0 and 1, and every row sums to 1. Pass "
            "the model's logits, or np.log(probabilities + 1e-12)"
        )

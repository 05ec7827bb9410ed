"""What a `LogitRecenter` is given: logits, the head behind them, and what scikit-learn asks of an estimator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from neotta.errors import InputError, OptionError
from neotta.neo.statefile import Array

if TYPE_CHECKING:

    class Estimator:
        """Named parameters that the constructor only stores."""

else:
    try:
        from sklearn.base import BaseEstimator as _Base
    except ImportError:
        _Base = object

    class Estimator(_Base):
        """An estimator of scikit-learn, where that is installed: it can be cloned and searched over."""

        def __sklearn_tags__(self) -> Any:
            from sklearn.utils import TransformerTags

            tags = super().__sklearn_tags__()
            tags.transformer_tags = TransformerTags(preserves_dtype=["float64", "float32"])
            tags.input_tags.allow_nan = True
            return tags


def bias_of(bias: Any, classes: int) -> Array:
    """The bias as numbers, (C,); zeros if there is none."""
    if bias is None:
        return np.zeros(classes)
    numbers = _numbers("bias", bias)
    if numbers.shape != (classes,) or not np.isfinite(numbers).all():
        raise OptionError(f"bias takes {classes} finite numbers, one for each class, got shape {numbers.shape}")
    return numbers


def inverse_of(weight: Any, classes: int) -> Array:
    """W⁺, (d, C), which makes embeddings of bias-free logits."""
    other = "shrinkage='james-stein-logits' does without"
    if weight is None:
        raise OptionError(f"shrinkage='james-stein' needs weight=, the weight of the head (C, d); {other}")
    numbers = _numbers("weight", weight)
    if numbers.ndim != 2 or len(numbers) != classes or not np.isfinite(numbers).all():
        raise OptionError(f"weight takes finite numbers of ({classes}, d), got shape {numbers.shape}")
    rank = np.linalg.matrix_rank(numbers)
    if rank < numbers.shape[1]:
        raise OptionError(
            f"shrinkage='james-stein' cannot be had from these logits: the weight has rank {rank} for embeddings "
            f"of {numbers.shape[1]} numbers, so their lengths are not determined; {other}"
        )
    return np.linalg.pinv(numbers)


def _numbers(name: str, values: Any) -> Array:
    """An array, a list, or a parameter of torch as float64."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
    try:
        return np.asarray(values, np.float64)
    except (TypeError, ValueError) as error:
        raise OptionError(f"{name} takes numbers: {error}") from error


def matrix(values: Any, name: str, columns: int | None = None) -> Array:
    """Check a table of numbers, (B, C); C has to be `columns` if given. Floating dtypes are kept.

    The words of the errors are those that scikit-learn's users, and its checks, know.
    """
    if hasattr(values, "toarray"):
        raise InputError(f"{name} takes a dense array, got a sparse {type(values).__name__}: call its toarray()")
    table = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
    if np.iscomplexobj(table):
        raise InputError(f"Complex data not supported: {name} takes real numbers")
    if not np.issubdtype(table.dtype, np.floating):
        try:
            table = table.astype(np.float64)
        except ValueError as error:  # what is no number at all is Python's TypeError
            raise InputError(f"{name} takes numbers: {error}") from error
    if table.ndim != 2:
        raise InputError(
            f"Expected 2D array, got {table.ndim}D array instead: {name} takes (samples, classes). "
            "Reshape your data with x.reshape(1, -1) if it is one sample"
        )
    if table.shape[1] == 0:
        raise InputError(f"0 feature(s) (shape={table.shape}) while a minimum of 1 is required by {name}.")
    if columns is not None and table.shape[1] != columns:
        raise InputError(f"X has {table.shape[1]} features, but {name} is expecting {columns} features as input")
    return table

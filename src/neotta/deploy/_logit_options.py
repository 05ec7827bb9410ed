"""Checking what a `LogitRecenter` is given: its rule, and the head behind the logits."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np

from neotta.errors import OptionError
from neotta.neo.statefile import Array

SHRINKAGES = ("james-stein", "james-stein-logits")


def check_rule(weighting: Any, alpha: Any, debias: Any, shrinkage: Any) -> None:
    """Check how the mean is kept; the rules are those of `neotta.NEOHead`."""
    if weighting not in ("sample", "batch"):
        raise OptionError(f"weighting is 'sample' or 'batch', got {weighting!r}")
    number = isinstance(alpha, Real) and not isinstance(alpha, bool)
    if alpha is not None and not (number and 0.0 <= float(alpha) <= 1.0):
        raise OptionError(f"alpha is {alpha!r}: it must be a number between 0 and 1")
    if debias and alpha is None:
        raise OptionError("debias belongs to the moving average: give alpha too")
    if shrinkage not in (None, *SHRINKAGES):
        raise OptionError(f"shrinkage is None, 'james-stein' or 'james-stein-logits', got {shrinkage!r}")
    if shrinkage and (alpha is not None or weighting != "sample"):
        raise OptionError("shrinkage goes with weighting='sample' and no alpha: it needs a count of samples")


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

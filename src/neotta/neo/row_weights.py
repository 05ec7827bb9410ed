"""Weights of the rows of a batch: how much each counts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from neotta.errors import InputError


def checked_weights(weights: Any) -> Tensor:
    """Validate weights, one number per sample, and convert them to float64 on the CPU, (N,).

    Raises:
        InputError: They are not a list of numbers, or one is negative, NaN or Inf.
    """
    try:
        numbers = torch.as_tensor(weights).detach().to("cpu", torch.float64, copy=True)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"expected weights, one number per sample, got {weights!r}") from error
    if numbers.dim() != 1:
        raise InputError(f"expected weights, one number per sample, got shape {tuple(numbers.shape)}")
    bad = ~(torch.isfinite(numbers) & (numbers >= 0))
    if bool(bad.any()):
        place = int(bad.nonzero()[0])
        raise InputError(f"weight {place} is {numbers[place].item():g}: expected a finite number of at least 0")
    return numbers


def per_row(weights: Any, rows: Tensor, samples: int) -> Tensor:
    """Convert weights of the rows, (N,), or of the samples to weights of the rows, (N,) float64 on their device.

    Args:
        weights: One per row, or one per sample.
        rows: (N, ...), N / samples consecutive rows for each sample.
        samples: Number of samples.

    Raises:
        InputError: They are not as many, or not valid.
    """
    if is_compiling():  # made by the graph itself, for each row
        given: Tensor = weights
        return given
    numbers = checked_weights(weights)
    if len(numbers) == samples != len(rows):
        numbers = numbers.repeat_interleave(len(rows) // samples)
    if len(numbers) != len(rows):
        raise InputError(f"got {len(numbers)} weights for a batch of {samples}: pass one per sample")
    return numbers.to(rows.device) if rows.device.type != "mps" else numbers.to(rows.device, torch.float32)

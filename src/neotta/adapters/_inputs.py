"""Checks of what callers give to an adapter."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from neotta.errors import InputError, OptionError

Classes = Sequence[int] | Sequence[bool] | Tensor


def check_batch(given: Tensor, what: str, shape: tuple[str | int, ...], weight: Tensor) -> None:
    """Check that a model can take a batch.

    Args:
        given: The batch.
        what: What it holds, for messages.
        shape: The expected sizes; a word stands for any size.
        weight: A weight of the model, for its dtype and device.

    Raises:
        InputError: The batch has another type, shape, device or dtype.
    """
    fits = (
        isinstance(given, Tensor)
        and given.is_floating_point()
        and given.dim() == len(shape)
        and all(isinstance(want, str) or want == size for want, size in zip(shape, given.shape, strict=True))
    )
    if not fits:
        got = f"{given.dtype} of {tuple(given.shape)}" if isinstance(given, Tensor) else type(given).__name__
        expected = f"a floating point tensor of ({', '.join(map(str, shape))})"
        raise InputError(f"{what} of this model are {expected}, got {got}")
    if given.device != weight.device:
        raise InputError(f"the {what} are on {given.device}, the model is on {weight.device}: move one of them")
    if given.dtype != weight.dtype and not torch.is_autocast_enabled(given.device.type):
        raise InputError(f"the {what} are {given.dtype}, the model is {weight.dtype}: convert one of them")


def class_indices(classes: Classes | None, total: int) -> Tensor | None:
    """Turn indices or a mask over `total` classes into a tensor of indices, (C,).

    Raises:
        OptionError: An index is out of range or given twice, the mask has another length, or nothing is kept.
    """
    if classes is None:
        return None
    try:
        kept = torch.as_tensor(classes).detach().cpu()
    except (TypeError, ValueError, RuntimeError):
        raise OptionError(f"classes takes a list of class indices or a mask, got {classes!r}") from None
    if kept.dtype == torch.bool:
        if kept.shape != (total,):
            raise OptionError(f"classes is a mask of {tuple(kept.shape)}: the model has {total} classes")
        kept = kept.nonzero().flatten()
    if kept.dim() != 1 or kept.is_floating_point() or len(kept) == 0:
        raise OptionError("classes takes a list of class indices or a mask, and keeps at least one class")
    if kept.min() < 0 or kept.max() >= total or len(set(kept.tolist())) != len(kept):
        raise OptionError(f"classes must be different indices from 0 to {total - 1}")
    return kept.long()

"""Checks of what callers give to an adapter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from neotta.errors import InputError, OptionError
from neotta.neo.model_inputs import tensors

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


def check_tensors(given: Any, weight: Tensor) -> None:
    """Check that a batch of any kind is made of tensors on the device, and in the precision, of the model.

    Raises:
        InputError: It is not.
    """
    for tensor in tensors(given, "a batch"):
        if tensor.device != weight.device:
            raise InputError(f"the batch is on {tensor.device}, the model is on {weight.device}: move one of them")
        wrong = tensor.is_floating_point() and tensor.dtype != weight.dtype
        if wrong and not torch.is_autocast_enabled(tensor.device.type):
            raise InputError(f"the batch is {tensor.dtype}, the model is {weight.dtype}: convert one of them")


def takes_images(model: nn.Module) -> bool:
    """Whether a model clearly takes images, so that a batch of another shape is a mistake."""
    named = getattr(model, "main_input_name", "pixel_values")
    kinds = {nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Embedding} & {type(module) for module in model.modules()}
    return named == "pixel_values" and kinds == {nn.Conv2d}


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

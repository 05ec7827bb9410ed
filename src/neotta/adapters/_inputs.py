"""Checks of what callers give to an adapter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from neotta.errors import InputError, OptionError, StateError
from neotta.neo.model_inputs import tensors

Classes = Sequence[int] | Sequence[bool] | Tensor


def check_batch(batch: Tensor, what: str, shape: tuple[str | int, ...], weight: Tensor) -> None:
    """Check that a model with such a weight can take a batch of this shape, in which a word stands for any size."""
    fits = (
        isinstance(batch, Tensor)
        and batch.is_floating_point()
        and batch.dim() == len(shape)
        and all(isinstance(want, str) or want == size for want, size in zip(shape, batch.shape, strict=True))
    )
    if not fits:
        got = f"{batch.dtype} of {tuple(batch.shape)}" if isinstance(batch, Tensor) else type(batch).__name__
        expected = f"a floating point tensor of ({', '.join(map(str, shape))})"
        raise InputError(f"{what} of this model are {expected}, got {got}")
    _check_placed(batch, f"the {what} are", weight)


def check_tensors(batch: Any, weight: Tensor) -> None:
    """Check that a batch of any kind is made of tensors on the device, and in the precision, of the model."""
    for tensor in tensors(batch, "a batch"):
        _check_placed(tensor, "the batch is", weight)


def _check_placed(tensor: Tensor, what: str, weight: Tensor) -> None:
    if tensor.device != weight.device:
        raise InputError(f"{what} on {tensor.device}, the model is on {weight.device}: move one of them")
    wrong = tensor.is_floating_point() and tensor.dtype != weight.dtype
    if wrong and not torch.is_autocast_enabled(tensor.device.type):
        raise InputError(f"{what} {tensor.dtype}, the model is {weight.dtype}: convert one of them")


def check_entry(name: str, value: Tensor, like: Tensor) -> None:
    """Check that an entry of a state holds numbers that the tensor it will be written to can have."""
    kind, wanted = _kind(value), _kind(like)
    if kind != wanted:
        raise StateError(f"entry {name!r} of this state holds {kind}, expected {wanted}")
    if kind == "real numbers" and not bool(value.to(like.dtype).isfinite().all()):
        raise StateError(f"entry {name!r} of this state holds NaN or Inf")
    largest = min(2**53, torch.iinfo(like.dtype).max) if kind == "whole numbers" else 0
    if kind == "whole numbers" and not bool(((value >= 0) & (value <= largest)).all()):
        raise StateError(f"entry {name!r} of this state holds a number out of range")


def _kind(value: Tensor) -> str:
    if value.is_floating_point():
        return "real numbers"
    other = value.is_complex() or value.is_quantized or value.dtype is torch.bool
    return str(value.dtype) if other else "whole numbers"


def check_source(images: Tensor, least: int) -> None:
    """Check the option `source`: clean images of the source domain, at least so many."""
    if images.dim() != 4 or len(images) < least or not images.is_floating_point():
        raise OptionError(
            f"option 'source' is {images.dtype} of {tuple(images.shape)}: floating point images of (N, 3, H, W) were "
            f"expected, at least {least}"
        )


def takes_images(model: nn.Module) -> bool:
    """Whether a model clearly takes images, so that a batch of another shape is a mistake."""
    named = getattr(model, "main_input_name", "pixel_values")
    kinds = {nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Embedding} & {type(module) for module in model.modules()}
    return named == "pixel_values" and kinds == {nn.Conv2d}


def class_indices(classes: Classes | None, total: int) -> Tensor | None:
    """Turn indices or a mask over `total` classes into a tensor of indices, (C,)."""
    if classes is None:
        return None
    try:
        indices = torch.as_tensor(classes).detach().cpu()
    except (TypeError, ValueError, RuntimeError):
        raise OptionError(f"classes takes a list of class indices or a mask, got {classes!r}") from None
    if indices.dtype == torch.bool:
        if indices.shape != (total,):
            raise OptionError(f"classes is a mask of {tuple(indices.shape)}: the model has {total} classes")
        indices = indices.nonzero().flatten()
    if indices.dim() != 1 or indices.is_floating_point() or len(indices) == 0:
        raise OptionError("classes takes a list of class indices or a mask, and keeps at least one class")
    if indices.min() < 0 or indices.max() >= total or len(set(indices.tolist())) != len(indices):
        raise OptionError(f"classes must be different indices from 0 to {total - 1}")
    return indices.long()

"""Transforms of functions, under which a head cannot adapt: each would see one sample, or a tensor without values."""

from __future__ import annotations

import torch
from torch._C._functorch import peek_interpreter_stack

from neotta.errors import UnsupportedModelError

CANNOT_ADAPT = (
    "cannot run a head that adapts: neotta.fold(model) first, or use torch.compile, torch.export or neotta export"
)


def refuse_transforms() -> None:
    """Raise an error inside `torch.vmap`, `torch.func.grad` and similar transforms, and inside `torch.jit.trace`.

    Raises:
        UnsupportedModelError: The call is transformed.
    """
    if peek_interpreter_stack() is not None:
        raise UnsupportedModelError(
            "torch.vmap and torch.func cannot run a head that adapts: call the model on whole batches, or freeze it "
            "first (neotta.head(model).freeze())"
        )
    if torch._C._is_tracing():
        raise UnsupportedModelError(f"torch.jit.trace {CANNOT_ADAPT}")

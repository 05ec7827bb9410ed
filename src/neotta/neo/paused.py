"""`neotta.paused`: predict without adapting, in this thread or task only."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import nn

from neotta.errors import InputError
from neotta.neo.per_call import pausing
from neotta.neo.surgery import heads


@contextlib.contextmanager
def paused(model: Any) -> Iterator[None]:
    """Predict without adapting inside a block.

    ```python
    with neotta.paused(model):
        logits = model(images)  # nothing changes
    ```

    Only calls of this thread (or task) are affected: others go on adapting the same model. To stop adapting everywhere,
    use `neotta.head(model).freeze()`.

    Args:
        model: An adapted model, or an adapter of `neotta.create`.

    Raises:
        NotAdaptedError: The model is not adapted.
    """
    if isinstance(model, nn.Module):
        heads(model)  # it must have some
        parts = frozenset(map(id, model.modules()))
    elif callable(model) and hasattr(model, "detach"):
        parts = frozenset({id(model)})
    else:
        raise InputError(f"expected an adapted model or an adapter, got {type(model).__name__}")
    with pausing(parts):
        yield

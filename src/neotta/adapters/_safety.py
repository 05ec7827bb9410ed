"""The base of methods that learn: bad batches are left out, and a warning says when the model may have collapsed."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

from neotta._warning import warn
from neotta.adapters.base import Adapter
from neotta.options import Options

O = TypeVar("O", bound=Options)  # noqa: E741

COLLAPSE = 256
"""Number of predictions of one class in a row after which a warning says that the model may have collapsed."""


class GuardedAdapter(Adapter[O]):
    """A method that learns from its input, and so can be damaged by it."""

    _streak: tuple[int, int] = (-1, 0)
    """The class predicted last, and how often in a row; negative after the warning.

    `_start` does not reset it, since some methods start again with every batch, and they can collapse too.
    """

    def reset(self) -> None:
        """Go back to the state right after construction, bit for bit."""
        super().reset()
        self._streak = (-1, 0)

    def usable(self, rows: Tensor) -> bool:
        """Whether a batch can be learnt from; one with NaN or Inf is counted, with a warning.

        Args:
            rows: Logits or features, one row for each sample, (B, n).
        """
        finite = torch.isfinite(rows).all(dim=1)
        if bool(finite.all()):
            return True
        bad = int((~finite).sum())
        self.skip(len(rows), f"{bad} of {len(rows)} samples give NaN or Inf")
        return False

    def watch(self, logits: Tensor) -> None:
        """Warn once after a long run of predictions of one class."""
        predicted = logits.argmax(dim=1)
        first = int(predicted[0])
        seen, length = self._streak
        if length < 0:  # warned already
            return
        if not bool((predicted == first).all()):
            self._streak = (-1, 0)
            return
        length = length + len(predicted) if seen == first else len(predicted)
        self._streak = (first, length)
        if length >= COLLAPSE and self.num_classes > 1:
            self._streak = (first, -1)
            warn(
                f"the last {length} predictions of {self.name} are all class {first}: it may have collapsed (or the "
                "stream holds one class only); reset() starts afresh"
            )

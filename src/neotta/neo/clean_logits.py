"""What a classifier returns for clean data, as far as a rule on logits needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:  # a state with a reference can be read without torch
    from torch import Tensor

Array = np.ndarray[Any, Any]


class CleanLogits:
    """How often each class is predicted for clean data, how high its logit then is, and where the mean lies."""

    def __init__(self, prior: Array, peak: float, free: Array) -> None:
        self.prior = np.asarray(prior, np.float64)  # how often each class is predicted, (C,), positive; the sum is 1
        self.peak = float(peak)  # expected logit of the predicted class
        self.free = np.asarray(free, np.float64)  # mean of the centred logits, without the bias, (C,)
        self._moved: dict[Any, tuple[Tensor, Tensor]] = {}

    def on(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """The prior and the free mean, (C,) each, as tensors like `like`."""
        place = (like.device, like.dtype)
        if place not in self._moved:
            self._moved[place] = (like.new_tensor(self.prior.tolist()), like.new_tensor(self.free.tolist()))
        return self._moved[place]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CleanLogits) and (
            self.peak == other.peak
            and np.array_equal(self.prior, other.prior)
            and np.array_equal(self.free, other.free)
        )

    def __hash__(self) -> int:
        return hash((self.prior.tobytes(), self.peak))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_moved": {}}

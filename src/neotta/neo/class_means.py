"""What a classifier returns for each class of clean data, measured in one pass over it.

A stream's mean of centred logits is the shift plus the mix of what its classes look like without a shift. Without clean
data a rule has to assume the latter: a mean of zero, and an equal peak for each class. `ClassMeans` replaces both by
what was measured: the mean of the clean data (the *origin*) and each class's own deviation from it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

Array = np.ndarray[Any, Any]


class ClassMeans:
    """Each class's own mean logits on clean data, as deviations from the mean of all.

    Attributes:
        prior: How often each class is predicted, (C,), all positive; the sum is 1.
        deviations: Mean of the centred logits of each predicted class, minus the mean of all, (C, C): a row per class.
        spread: Squared length of each row, (C,).
        peak: Expected logit of the predicted class.
        free: Mean of the centred logits of all, without the bias, (C,).
    """

    def __init__(self, prior: Array, deviations: Array, peak: float, free: Array) -> None:
        self.prior = np.asarray(prior, np.float64)
        self.deviations = np.asarray(deviations, np.float32)
        self.spread = (self.deviations.astype(np.float64) ** 2).sum(1)
        self.peak = float(peak)
        self.free = np.asarray(free, np.float64)
        self._moved: dict[Any, tuple[Any, ...]] = {}

    def on(self, like: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The prior (C,), deviations (C, C), spread (C,) and free mean (C,), as tensors like `like`."""
        place = (like.device, like.dtype)
        if place not in self._moved:
            arrays = (self.prior, self.deviations, self.spread, self.free)
            self._moved[place] = tuple(torch.as_tensor(array).to(like) for array in arrays)
        prior, deviations, spread, free = self._moved[place]
        return prior, deviations, spread, free

    def mix(self, share: Tensor, peak: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What a mix of classes looks like without a shift.

        Under a shift all embeddings shrink: the deviations of the classes and the mean are scaled by the height of the
        peak relative to that of the clean data, at most 1.

        Args:
            share: The shares of the predicted classes, (..., C).
            peak: Expected logit of the predicted class, (...).

        Returns:
            The mean of the mix, (..., C); the variance between its classes, (...); and how far the shares are from
            those of the clean data, from 0 to about 1, (...).
        """
        prior, deviations, spread, free = self.on(share)
        scale = (peak / self.peak).clip(min=0.0, max=1.0)
        mean = scale[..., None] * (share @ deviations)
        between = scale**2 * (share * spread).sum(-1) - (mean * mean).sum(-1)
        mean = mean - (1 - scale)[..., None] * free
        classes = share.shape[-1]
        uneven = ((share - prior) ** 2).sum(-1) * classes / (classes - 1)
        return mean, between, uneven

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClassMeans) and all(
            np.array_equal(mine, theirs)
            for mine, theirs in (
                (self.prior, other.prior),
                (self.deviations, other.deviations),
                (self.peak, other.peak),
                (self.free, other.free),
            )
        )

    def __hash__(self) -> int:
        return hash((self.prior.tobytes(), self.peak))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_moved": {}}


class ClassSums:
    """Sums over clean logits from which `ClassMeans` are computed.

    Args:
        classes: Number of classes C.
        bias: Bias of the head, (C,), if it has one.
    """

    def __init__(self, classes: int, bias: Array | None = None) -> None:
        self._bias = np.zeros(classes) if bias is None else np.asarray(bias - np.mean(bias), np.float64)
        self.count = 0
        self.total = np.zeros(classes)
        self.predicted = np.zeros(classes)
        self.by_class = np.zeros((classes, classes))
        self.squares = self.peak = 0.0

    def add(self, logits: Array) -> None:
        """Add finite logits, (B, C)."""
        centred = logits - logits.mean(1, keepdims=True)
        powers = np.exp(centred - centred.max(1, keepdims=True))
        q = powers / powers.sum(1, keepdims=True)
        self.count += len(logits)
        self.total += centred.sum(0)
        self.predicted += q.sum(0)
        self.by_class += q.T @ centred
        self.squares += float((centred * centred).sum())
        self.peak += float((q * centred).sum())

    @property
    def origin(self) -> Array:
        """The mean of the centred logits, (C,), which replaces the bias."""
        return np.asarray(self.total / self.count)

    def means(self) -> ClassMeans:
        """The mean of each predicted class, shrunk towards an equal peak for each class where there are few samples.

        A sample belongs to each class with its predicted probability, so that the mix of the class means, with the
        shares predicted for the clean data, is exactly the mean of the clean data. The mean of a class of n samples
        has the weight n / (n + s²/t²), where s² is the variance inside the classes and t² how far classes really
        deviate from equal peaks (empirical Bayes). A class that is never predicted has the peak alone.
        """
        classes, n, count = len(self.total), self.predicted, self.count
        own = self.by_class / np.maximum(n, 1e-12)[:, None] - self.origin
        height = self.peak / count / (1 - 1 / classes)
        peaks = height * (np.eye(classes) - n / count)
        inside = self.squares - count * float(self.origin @ self.origin) - float(n @ (own**2).sum(1))
        seen = n > 0.5
        variance = max(inside, 0.0) / max(count - int(seen.sum()), 1)
        apart = float((n * ((own - peaks) ** 2).sum(1))[seen].sum() - variance * seen.sum())
        apart /= max(float(n[seen].sum()), 1.0)
        weight = n / (n + variance / max(apart, 1e-9))
        deviations = peaks + weight[:, None] * (own - peaks)
        deviations -= (n / count) @ deviations
        return ClassMeans((n + 1 / classes) / (count + 1), deviations, self.peak / count, self.origin - self._bias)

"""What the moments of a stream say of its shift, each time scale by itself and both together."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from neotta.neo.class_means import ClassMeans
from neotta.neo.moments import namespace

if TYPE_CHECKING:
    from neotta.neo.stream_moments import Constants, StreamMoments

FEWEST = 1.5  # so many effective samples are too few
TINY = 1e-9
EVER, LATELY = 0, 1  # the two time scales


def shift_of(state: StreamMoments, use: Constants) -> Any:
    """The vector to subtract, (K, C): the start first, then all time and the window, each shrunk towards the last."""
    own = estimates(state, use)
    shift = 1.0 * state.start
    for scale in (EVER,) if use.window is None else (EVER, LATELY):
        shift = shift + own.step(scale, shift)
    return shift


class Estimates(NamedTuple):
    """What each time scale says of the shift by itself.

    Attributes:
        told: Whether a shift can be told from the labels, (K, 2).
        shift: The shift, (K, 2, C).
        noise: Squared length of the error to expect of it, (K, 2).
    """

    told: Any
    shift: Any
    noise: Any

    def step(self, scale: int, shift: Any) -> Any:
        """The step from `shift` to a scale's own estimate, shrunk by its noise, (K, C); 0 where it cannot be told."""
        step = self.shift[:, scale] - shift
        factor = (1 - self.noise[:, scale] / squared(step).clip(min=1e-12)).clip(min=0.0)
        return namespace(step).where(self.told[:, scale], factor, 0.0)[:, None] * step


def estimates(state: StreamMoments, use: Constants) -> Estimates:
    """What each time scale says of the shift."""
    xp, classes = namespace(state.mean), state.mean.shape[-1]
    weight, squares = state.weight, state.squares
    n = xp.where(weight > 0, weight, 1.0)
    effective = weight * weight / xp.where(squares > 0, squares, 1.0)
    lately = xp.where(effective < weight, effective, weight)[:, LATELY]
    samples = xp.stack([weight[:, EVER], lately], -1)
    variance, skew = state.second.sum(-1) / n, state.third.sum(-1) / n
    told = (samples > FEWEST) & (variance >= TINY) & (math.sqrt(classes) * skew >= use.gate * variance**1.5)
    trust = xp.where(state.trust > 0, state.trust, 1.0)
    mix, between, uneven = mix_of_classes(state.predicted / trust[..., None], state.peak / trust, use.classes)
    # Classes deviate from the model of what they look like. As expected, that cancels; one-sided, it stays.
    misfit = (variance - between).clip(min=0.0)
    noise = variance / xp.where(samples > 1, samples - 1, 1.0) + misfit * uneven
    return Estimates(told, state.mean - mix, noise)


def mix_of_classes(share: Any, peak: Any, known: ClassMeans | None) -> tuple[Any, Any, Any]:
    """What classes of these shares look like without a shift; see `ClassMeans.mix`.

    If nothing was measured, each class has a peak of the same height, and all are equally frequent.
    """
    if known is not None:
        return known.mix(share, peak)
    classes = share.shape[-1]
    height = peak / (1 - 1 / classes)
    concentration = squared(share)
    uneven = (concentration - 1 / classes).clip(min=0.0) * classes / (classes - 1)
    return height[..., None] * (share - 1 / classes), height**2 * (1 - concentration), uneven


def squared(rows: Any) -> Any:
    """Squared length of rows, (..., C) to (...)."""
    return dot(rows, rows)


def dot(one: Any, other: Any) -> Any:
    """Inner products of rows, (..., C) to (...)."""
    return np.einsum("...i,...i->...", one, other) if namespace(one) is np else (one * other).sum(-1)

"""Results of a monitor: changes and status."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from neotta.monitoring.library import Proximity
from neotta.monitoring.rank_evidence import Floats

Action = Literal["none", "reset", "nearest"]
Unit = Literal["label", "sample"]


@dataclass(frozen=True)
class Change:
    """An alarm, and the action that was taken.

    Attributes:
        sample: Number of samples seen when the alarm was raised.
        since: Number of samples since the most likely time of the change (at most 256).
        moved: Distance of their mean from the centroid before the change.
        nearest: The nearest known domain, if the library has any.
        action: The action taken; `"none"` if the model is frozen.
        worth: For `"nearest"`, the number of samples that the known centroid counts as.
    """

    sample: int
    since: int
    moved: Proximity
    nearest: Proximity | None
    action: Action
    worth: int


@dataclass(frozen=True)
class Status:
    """Status of a monitor.

    Attributes:
        samples: Number of samples seen.
        rejected: Number of samples excluded because of NaN or Inf.
        current: Number of samples since the last change, which the distances and speeds below refer to.
        alarms: Number of changes detected.
        ready: Whether the test for changes has started.
        evidence: How close the next alarm is, 0 to 1.
        origin: Distance of the centroid from zero.
        model: Distance from the centroid that the model subtracts; None without a model.
        speed: Distance that the centroid of a short window moves in 100 samples.
        speed_noise: Speed expected from sampling noise alone.
        domains: Distances from the known domains, nearest first.
    """

    samples: int
    rejected: int
    current: int
    alarms: int
    ready: bool
    evidence: float
    origin: Proximity
    model: Proximity | None
    speed: float
    speed_noise: float
    domains: tuple[Proximity, ...]


def speed(recent: Floats) -> tuple[float, float]:
    """Distance that the mean moves in 100 samples, between the halves of a window; and that expected from noise."""
    half = len(recent) // 2
    if half < 2:
        return math.nan, math.nan
    older, newer = recent[-2 * half : -half], recent[-half:]
    variance = (older.var(0, ddof=1).sum() + newer.var(0, ddof=1).sum()) / 2
    step = float(np.linalg.norm(newer.mean(0) - older.mean(0)))
    return step * 100 / half, math.sqrt(2 * variance / half) * 100 / half

"""What a monitor tells: alarms, and how things stand."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from neotta.monitoring.library import Proximity
from neotta.monitoring.rank_evidence import Floats

Action = Literal["none", "reset", "nearest"]


@dataclass(frozen=True)
class Change:
    """An alarm, and what was done about it.

    Attributes:
        sample: How many samples the monitor had seen when it was raised.
        since: How many of them, the last ones, came after the most likely moment of the change (256 at most).
        moved: How far the mean of these lies from the centroid before.
        nearest: The known domain nearest to them, if the library has any.
        action: What was done with the model's centroid. `"none"` also if it is frozen.
        worth: With `"nearest"`: as how many samples the known centroid counts from now on.
    """

    sample: int
    since: int
    moved: Proximity
    nearest: Proximity | None
    action: Action
    worth: int


@dataclass(frozen=True)
class Status:
    """What a monitor knows.

    Attributes:
        samples: How many samples it has seen.
        rejected: How many more held NaN or Inf, and did not count.
        current: How many samples came since the last change; all that follows is about these.
        alarms: How many changes there were.
        ready: Whether the test for changes has begun.
        evidence: How near the next alarm is, 0 to 1.
        origin: How far the centroid lies from zero.
        model: How far it lies from the centroid that the model subtracts; None without a model.
        speed: How far the centroid of a short window moves in 100 samples.
        speed_noise: How large that would typically be if nothing moved.
        domains: How far the centroid lies from the known domains, the nearest first.
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
    """How far the mean moves in 100 samples, from the older to the newer half of a window; and what noise would do."""
    half = len(recent) // 2
    if half < 2:
        return math.nan, math.nan
    older, newer = recent[-2 * half : -half], recent[-half:]
    variance = (older.var(0, ddof=1).sum() + newer.var(0, ddof=1).sum()) / 2
    step = float(np.linalg.norm(newer.mean(0) - older.mean(0)))
    return step * 100 / half, math.sqrt(2 * variance / half) * 100 / half

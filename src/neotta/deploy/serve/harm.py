"""Does adapting hurt a camera? Evidence without labels."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from neotta.deploy.serve.figures import one_sidedness
from neotta.neo.statefile import Array

FEWEST = 64
MARGIN = 0.05
"""Adapted answers that are less stable than the plain ones by more than this count as harm."""

DEPENDENT = 4.0
"""Frames of a camera depend on each other: so many count as one."""


class Verdict(NamedTuple):
    """Whether adapting hurts, and why."""

    hurts: bool
    reason: str = ""


def judge(rows: Array) -> Verdict:
    """Judge the last samples of a camera, the records of `Figures.recent`.

    Adapting hurts if adapted answers are less stable under dropout than the plain ones, beyond chance (one-sided, 0.5 %
    on independent samples); or if they have collapsed to far fewer classes than the plain ones show.
    """
    measured = rows[np.isfinite(rows["agrees"])]
    if len(measured) < FEWEST:
        return Verdict(False)
    loss = measured["own"].astype(np.float64) - measured["agrees"]
    noise = float(loss.std()) / math.sqrt(len(loss) / DEPENDENT)
    if float(loss.mean()) - 2.6 * noise > MARGIN:
        return Verdict(True, f"adapted answers are less stable under dropout than the plain ones by {loss.mean():.0%}")
    _, before = one_sidedness(rows["plain"])
    _, after = one_sidedness(rows["adapted"])
    if after < 0.5 * before and float((rows["plain"] != rows["adapted"]).mean()) > 0.3:
        return Verdict(
            True, f"adapted answers have collapsed to {after:.1f} classes where the plain ones show {before:.1f}"
        )
    return Verdict(False)

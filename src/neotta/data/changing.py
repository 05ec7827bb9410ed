"""A corruption that never stops changing, in the manner of CCC (Press et al., "RDumb", NeurIPS 2023).

One corruption fades out while the next fades in, along a path on which the unadapted model is right equally often: what
a method gains or loses over time is then due to the method, not to an easier or harder moment. `contour` finds the
path by asking for the accuracy of the unadapted model at some blends; who measures it does not matter here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np

from neotta.data._numbers import whole
from neotta.data.blended import STRONGEST, Blend
from neotta.data.domain_samples import Data, DomainSamples, only
from neotta.data.drawing import Indices, Skew, shuffled
from neotta.data.order import Order, assemble
from neotta.data.visits import EVEN, SEED
from neotta.errors import DataError

STEP = 0.25
"""The largest change of a severity from one point to the next, as in CCC."""
RAYS = 5
"""The proportions of two corruptions in which a path is calibrated: 1 to 0, ..., 1 to 1, ..., 0 to 1."""
MEASURED = RAYS * (int(STRONGEST / STEP).bit_length() + 1)
"""Number of blends whose accuracy is asked for, at most, from one corruption to the next."""


class Point(NamedTuple):
    """A point of a path: the blend, and the accuracy in percent that the unadapted model should have there."""

    blend: Blend
    accuracy: float


def contour(first: str, second: str, measure: Callable[[Blend], float], target: float) -> list[Point]:
    """The path from one corruption to another on which the unadapted model stays at an accuracy.

    In each proportion of the two, bisection finds the strength at which the model is nearest to the target. A stronger
    blend is taken to be no easier. Between proportions, severities and accuracy are interpolated.

    Args:
        first: The corruption that fades out.
        second: The corruption that fades in.
        measure: Accuracy of the unadapted model under a blend, in percent.
        target: The accuracy to stay at, in percent.

    Returns:
        Points from the first corruption alone to the second alone. Where even the strongest blend in some proportion is
        too easy, the strongest is taken.
    """
    angles = np.linspace(0, np.pi / 2, RAYS)
    found = [_on_ray(first, second, float(angle), measure, target) for angle in angles]
    path = [found[0]]
    for start, stop in itertools.pairwise(found):
        (_, a, _, b), (_, c, _, d) = start.blend, stop.blend
        steps = max(1, math.ceil(max(abs(c - a), abs(d - b)) / STEP - 1e-9))
        for share in np.arange(1, steps + 1) / steps:
            blend = Blend(first, round(float(a + share * (c - a)), 2), second, round(float(b + share * (d - b)), 2))
            path.append(Point(blend, float(start.accuracy + share * (stop.accuracy - start.accuracy))))
    return path


def _on_ray(first: str, second: str, angle: float, measure: Callable[[Blend], float], target: float) -> Point:
    """The point nearest to the target where both severities are in one proportion."""
    direction = np.array([math.cos(angle), math.sin(angle)]).clip(0, 1)
    direction = np.where(direction < 1e-9, 0, direction) / direction.max()

    def at(step: int) -> Point:
        one, other = (round(float(severity), 2) for severity in step * STEP * direction)
        blend = Blend(first, one, second, other)
        return Point(blend, measure(blend))

    low, high = 0, int(STRONGEST / STEP)  # easier than the target, and not
    if at(high).accuracy > target:
        return at(high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if at(middle).accuracy > target else (low, middle)
    return min(at(low), at(high), key=lambda point: abs(point.accuracy - target))


def held_out(size: int, count: int) -> tuple[Indices, Indices]:
    """Which images calibrate, (count,), and which are left for orders; the same for every seed."""
    whole("calibration (the number of images it is measured on)", count, 1)
    if 2 * count > size:
        raise DataError(f"{count} of {size} images are asked for to calibrate: at most half, or too few are left")
    drawn = shuffled(size, 0, "calibration")
    return drawn[:count], drawn[count:]


def changing(
    data: Data,
    path: Sequence[Point],
    *,
    pool: Indices | None = None,
    samples: int = 512,
    samples_per_step: int = 8,
    skew: Skew = EVEN,
    seed: int = SEED,
    batch_size: int = 64,
    parameters: dict[str, Any] | None = None,
) -> Order:
    """Walk along a path of blends, over and over; each step is a domain of its own.

    Args:
        data: The domain of the clean images.
        path: The points in their order; after the last comes the first.
        pool: Which images may be shown, (n,); None: all of them.
        samples: Number of samples in all; -1: as many as the pool has. When all images were shown they come again, in
            another order.
        samples_per_step: How many samples are shown at each point: CCC calls it the speed.
        skew: How labels are distributed in each pass through the images.
        seed: Seed of all drawing.
        batch_size: Samples in a batch; a batch may hold samples of several points.
        parameters: What else the manifest should say of how the path was found.
    """
    domain = only(data)
    pool = np.arange(domain.size, dtype=np.int64) if pool is None else pool
    length = len(pool) if samples == -1 else whole("the number of samples (-1: all)", samples, 1)
    each = whole("samples_per_step", samples_per_step, 1)
    shown = pool[_passes(domain, pool, skew, seed, length)]
    visits = list(itertools.islice(itertools.cycle(path), -(-length // each)))
    about = {"samples": samples, "samples_per_step": each, "skew": asdict(skew), **(parameters or {})}
    about["path"] = [[point.blend.name, round(point.accuracy, 2)] for point in path]
    parts = [shown[start : start + each] for start in range(0, length, each)]
    found = [DomainSamples(point.blend.name, domain.size, domain.labels, domain.ids) for point in visits]
    return assemble("changing", found, parts, seed, batch_size, about)


def _passes(domain: DomainSamples, pool: Indices, skew: Skew, seed: int, length: int) -> Indices:
    """Positions in the pool: one pass through it after the other, (length,)."""
    labels = None if domain.labels is None else domain.labels[pool]
    mine = DomainSamples(domain.name, len(pool), labels, None)
    parts: list[Indices] = []
    while sum(map(len, parts)) < length:
        parts.append(mine.draw(skew, -1, seed, visit=len(parts)))
    return np.concatenate(parts)[:length]

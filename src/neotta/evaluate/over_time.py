"""Accuracy batch by batch, so that collapse and recovery can be seen."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from neotta.data.drawing import Indices
from neotta.evaluate.answers import Answers
from neotta.evaluate.blocks import Block
from neotta.evaluate.metrics import Interval
from neotta.evaluate.statistics import accuracy

STEPS = 20
"""Number of steps in which a run is shown, at most; each has one batch or several."""


class Step(NamedTuple):
    """Some batches in a row: the first and the last, counted from 1, and the accuracy in percent."""

    first: int
    last: int
    accuracy: Interval


def over_time(block: Block, steps: int = STEPS) -> dict[str, list[Step]]:
    """The accuracy of each method over the batches of its runs: all shifted domains and seeds together.

    Methods whose records do not say which samples were right are left out.

    Args:
        block: Runs under the same conditions.
        steps: Number of steps, at most.
    """
    found = {label: runs for label in block.methods if (runs := _runs(block, label))}
    batches = max((int(run.batch.max()) + 1 for runs in found.values() for run in runs), default=0)
    width = max(1, -(-batches // steps))
    starts = range(0, batches, width)
    return {
        label: [step for start in starts if (step := _step(runs, start, min(start + width, batches)))]
        for label, runs in found.items()
    }


class _Run(NamedTuple):
    right: NDArray[np.bool_]
    image: Indices
    batch: Indices


def _runs(block: Block, label: str) -> list[_Run]:
    """The answers of a method by seed, in all shifted domains; none if some are not known."""
    cells = [block.cells[domain, label] for domain in block.averaged or block.domains if (domain, label) in block.cells]
    by_seed: dict[int, list[Answers | None]] = {}
    for cell in cells:
        for seed, value in cell.values.items():
            by_seed.setdefault(seed, []).append(value.answers)
    known = [[part for part in parts if part is not None] for parts in by_seed.values()]
    if sum(map(len, known)) < sum(map(len, by_seed.values())):
        return []
    return [
        _Run(*(np.concatenate([getattr(part, name) for part in parts]) for name in _Run._fields)) for parts in known
    ]


def _step(runs: list[_Run], start: int, stop: int) -> Step | None:
    chosen = [(run, (run.batch >= start) & (run.batch < stop)) for run in runs]
    right, images = [run.right[here] for run, here in chosen], [run.image[here] for run, here in chosen]
    if not sum(map(len, right)):
        return None
    mean, low, high = (100 * value for value in accuracy(right, images))
    return Step(start + 1, stop, Interval(mean, max(high - mean, mean - low), len(runs)))

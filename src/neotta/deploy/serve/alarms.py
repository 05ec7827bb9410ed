"""Alarms for cameras: sudden changes of what the model sees, valid where consecutive frames depend on each other.

Frames of a video are nearly alike, and a test for independent samples would raise one false alarm after the other. So
frames are summed up in blocks, and the blocks are lengthened, in the camera's first minutes, until consecutive blocks
are nearly uncorrelated. On blocks that are independent and identically distributed, the probability of a false alarm
within n blocks is at most `RATE` · n.
"""

from __future__ import annotations

import numpy as np

from neotta.deploy.serve.engine import Forward
from neotta.monitoring.change import ChangeDetector
from neotta.neo.statefile import Array

RATE = 1e-4
"""False alarms per block."""

SHORTEST, LONGEST = 4, 4096
"""Frames of a block."""

WARMUP = 48
"""Blocks before the test starts."""

CORRELATED = 0.35
"""Consecutive blocks more alike than this are joined."""

NUMBERS = 12
"""Numbers that are kept of a frame."""


class Sketch:
    """A few fixed random projections of what the model sees: enough to notice a change, and small."""

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._matrix: Array | None = None

    def __call__(self, forward: Forward) -> Array:
        """The numbers of each row, (N, NUMBERS), from the embedding, or from the logits if it is not known."""
        rows = forward.embeddings[0].float().cpu().numpy() if forward.embeddings else forward.logits
        rows = rows.reshape(len(rows), -1).astype(np.float64)
        if self._matrix is None or len(self._matrix) != rows.shape[1]:
            generator = np.random.default_rng(self._seed)
            self._matrix = generator.normal(size=(rows.shape[1], min(NUMBERS, rows.shape[1]))) / np.sqrt(rows.shape[1])
        return np.asarray(rows @ self._matrix)


class BlockDetector:
    """Raises an alarm when the frames of one camera change suddenly."""

    def __init__(self) -> None:
        self.length = SHORTEST
        self._detector: ChangeDetector | None = None
        self._pending: list[Array] = []
        self._blocks: list[Array] = []

    @property
    def ready(self) -> bool:
        """Whether alarms are possible already."""
        return self._detector is not None

    @property
    def evidence(self) -> float:
        """How close the next alarm is, 0 to 1."""
        return 0.0 if self._detector is None else self._detector.evidence

    def observe(self, rows: Array) -> bool:
        """Add frames, (n, NUMBERS), in order; whether they raise an alarm."""
        alarm = False
        for row in rows[np.isfinite(rows).all(1)]:
            self._pending.append(row)
            if len(self._pending) >= self.length:
                block = np.mean(self._pending, axis=0)
                self._pending = []
                alarm = self._block(block) or alarm
        return alarm

    def _block(self, block: Array) -> bool:
        if self._detector is None:
            self._blocks.append(block)
            if len(self._blocks) >= WARMUP:
                self._settle()
            return False
        if self._detector.observe(block[None]) is None:
            return False
        self._detector, self._blocks = None, []  # what is normal now has to be learnt anew
        return True

    def _settle(self) -> None:
        """Start the test, or join blocks that are too much alike."""
        blocks = np.array(self._blocks)
        if self.length < LONGEST and correlation(blocks) > CORRELATED:
            even = blocks[: len(blocks) // 2 * 2]
            self._blocks = list(even.reshape(-1, 2, even.shape[1]).mean(1))
            self.length *= 2
            return
        self._detector = ChangeDetector(blocks.shape[1], false_alarm_rate=RATE, warmup=WARMUP, memory=16 * WARMUP)
        self._detector.observe(blocks)
        self._blocks = []


def correlation(blocks: Array) -> float:
    """How much consecutive blocks are alike, -1 to 1, over all numbers."""
    away = blocks - blocks.mean(0)
    scale = float((away * away).sum())
    return float((away[1:] * away[:-1]).sum()) / scale if scale > 0 else 0.0

"""Alarms for cameras: sudden changes of what the model sees, valid where consecutive frames depend on each other.

Frames of a video are nearly alike, and a test for independent samples would raise one false alarm after the other. So
the stream is thinned: of every `length` frames only the mean of the last `SHORTEST` is tested. In a camera's first
minutes `length` is doubled until what is tested is nearly uncorrelated from one time to the next. On values that are
independent and identically distributed, the probability of a false alarm within n of them is at most `RATE` · n;
measured on dependent frames in `benchmarks/video_alarms.py`.

The test is that of `neotta.Monitor`. What is tested differs: the monitor watches one stream, keeps whole embeddings and
takes the first sample of each run of one answer. A server watches thousands of cameras, so it keeps a few projections
of each frame; and it does not know how frames depend on each other inside a run, so it thins by what it measures. That
a change is one of labels alone, which the monitor tells from the means of the classes, cannot be told from so few
numbers: on foggy digits it took the fog for other labels.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from neotta.deploy.serve.engine import Forward
from neotta.monitoring.change import ChangeDetector
from neotta.neo.statefile import Array

RATE = 1e-6
"""False alarms per tested value."""

SHORTEST, LONGEST = 4, 4096
"""Frames that make one tested value, and the most frames between two of them."""

WARMUP = 48
"""Values before the test starts."""

CORRELATED = 0.1
"""Values more alike than this, from one to the next, are thinned further."""

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


class VideoDetector:
    """Raises an alarm when the frames of one camera change suddenly.

    Attributes:
        length: Frames from one tested value to the next.
    """

    def __init__(self) -> None:
        self.length = SHORTEST
        self._detector: ChangeDetector | None = None
        self._waited = 0
        self._last: deque[Array] = deque(maxlen=SHORTEST)
        self._values: list[Array] = []

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
            self._last.append(row)
            self._waited += 1
            if self._waited >= self.length:
                self._waited = 0
                alarm = self._test(np.mean(self._last, axis=0)) or alarm
        return alarm

    def _test(self, value: Array) -> bool:
        if self._detector is None:
            self._values.append(value)
            if len(self._values) >= WARMUP:
                self._settle()
            return False
        if self._detector.observe(value[None]) is None:
            return False
        self._detector, self._values = None, []  # what is normal now has to be learnt again
        return True

    def _settle(self) -> None:
        """Start the test, or thin further."""
        values = np.array(self._values)
        if self.length < LONGEST and correlation(values) > CORRELATED:
            self._values = self._values[1::2]
            self.length *= 2
            return
        self._detector = ChangeDetector(values.shape[1], false_alarm_rate=RATE, warmup=WARMUP, memory=16 * WARMUP)
        self._detector.observe(values)
        self._values = []


def correlation(values: Array) -> float:
    """How much consecutive values are alike, -1 to 1, over all their numbers."""
    away = values - values.mean(0)
    scale = float((away * away).sum())
    return float((away[1:] * away[:-1]).sum()) / scale if scale > 0 else 0.0

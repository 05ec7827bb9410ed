"""Alarms for cameras: sudden changes of what the model sees, valid where consecutive frames depend on each other.

The test is that of `neotta.monitoring`, and so is the check whether labels alone have changed. Two things are different
from `neotta.Monitor`, which watches one stream: it tests the first sample of each run of one answer, and keeps whole
embeddings. A server does not know how the frames of a camera depend on each other inside a run, so the stream is
thinned by what is measured: of every `length` frames only the mean of the last `SHORTEST` is tested, and in a camera's
first minutes `length` is doubled until what is tested is nearly uncorrelated from one time to the next. And it watches
thousands of cameras, so only a few projections of an embedding are kept.

On values that are independent and identically distributed, the probability of a false alarm within n of them is at most
`RATE` · n; measured on dependent frames in `benchmarks/video_alarms.py`.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from neotta.deploy.serve.engine import Forward
from neotta.monitoring.change import ChangeDetector
from neotta.monitoring.label_draws import LATE, ClassResiduals
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
    """Raises an alarm when the frames of one camera change suddenly, and not only their labels.

    Args:
        classes: Number of classes C.

    Attributes:
        length: Frames from one tested value to the next.
        label_changes: Number of changes that were of labels alone.
    """

    def __init__(self, classes: int) -> None:
        self.length = SHORTEST
        self.label_changes = 0
        self._classes = classes
        self._detector: ChangeDetector | None = None
        self._waited = 0
        self._last: deque[Array] = deque(maxlen=SHORTEST)
        self._forget()

    def _forget(self) -> None:
        """Learn anew what is normal."""
        self._values: list[Array] = []
        self._frames: deque[tuple[Array, int]] = deque()  # the last frame of each tested value, and its label
        self._means: ClassResiduals | None = None

    @property
    def ready(self) -> bool:
        """Whether alarms are possible already."""
        return self._detector is not None

    @property
    def evidence(self) -> float:
        """How close the next alarm is, 0 to 1."""
        return 0.0 if self._detector is None else self._detector.evidence

    def observe(self, rows: Array, labels: Array) -> bool:
        """Add frames, (n, NUMBERS), with the labels of the plain model, (n,), in order; whether they raise an alarm."""
        alarm = False
        finite = np.isfinite(rows).all(1)
        for row, label in zip(rows[finite], labels[finite].tolist(), strict=True):
            self._last.append(row)
            self._waited += 1
            if self._waited >= self.length:
                self._waited = 0
                self._remember(row, label)
                alarm = self._test(np.mean(self._last, axis=0)) or alarm
        return alarm

    def _remember(self, row: Array, label: int) -> None:
        """Add a frame to the mean of its class, but late: it may belong to a change that is not noticed yet."""
        self._frames.append((row, label))
        if len(self._frames) > LATE:
            old, known = self._frames.popleft()
            if self._means is None:
                self._means = ClassResiduals(self._classes, len(row))
            self._means.add(old[None], np.array([known]))

    def _test(self, value: Array) -> bool:
        if self._detector is None:
            self._values.append(value)
            if len(self._values) >= WARMUP:
                self._settle()
            return False
        alarm = self._detector.observe(value[None])
        if alarm is None:
            return False
        self._detector = None
        if self._labels_alone(alarm.since):
            self.label_changes += 1
            self._values = []
            return False
        self._forget()
        return True

    def _labels_alone(self, since: int) -> bool:
        """Whether the frames since a change fit their classes; not if these are too new to say."""
        recent = list(self._frames)[-since:]
        labels = np.array([label for _, label in recent])
        if self._means is None or self._means.known(labels).mean() < 0.5:
            return False
        return not self._means.shifted(np.array([row for row, _ in recent]), labels, independent=True)

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

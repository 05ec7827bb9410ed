"""Sudden change in a stream of embeddings, with a bound on false alarms.

A test must not be fitted on the samples that it ranks. So it is fitted on samples of the past, and only later ones are
tested with it. Better fits come as the stream goes on: at 1, 2, 4, … times `warmup` samples, then every `memory`
samples. Two generations watch at any time, the younger one while it gathers ranks; each consists of two tests, and each
of these four gets a quarter of the allowed rate. Hence: while embeddings are independent and equally distributed, in
whatever way, the probability of a false alarm within n samples of the start is at most `false_alarm_rate` · n.
"""

from __future__ import annotations

import numpy as np

from neotta.errors import InputError, OptionError
from neotta.monitoring.rank_evidence import Alarm, Floats
from neotta.monitoring.scores import DirectionTest, DistanceTest, Spread

REFERENCE = 256
"""At most so many samples are kept, to fit tests on and to look back at after a change."""

TESTS = 4


class ChangeDetector:
    """Raises an alarm when the embeddings of a stream suddenly change; see the top of this file.

    Args:
        features: The length d of an embedding.
        false_alarm_rate: The bound on false alarms, per sample.
        warmup: How many samples are taken as usual before the test begins.
        memory: How many samples pass, in the long run, before the tests are fitted anew.
    """

    def __init__(self, features: int, *, false_alarm_rate: float = 1e-6, warmup: int = 128, memory: int = 1024) -> None:
        if not isinstance(false_alarm_rate, float) or not 0.0 < false_alarm_rate < 1.0:
            raise OptionError(f"false_alarm_rate is {false_alarm_rate!r}: it lies between 0 and 1, such as 1e-6")
        if not isinstance(warmup, int) or warmup < 2:
            raise OptionError(f"warmup is {warmup!r}: at least 2 samples are needed, and 64 or more are better")
        if not isinstance(memory, int) or memory < warmup:
            raise OptionError(f"memory is {memory!r}: it is a whole number, and at least warmup, {warmup}")
        self.features = features
        self.false_alarm_rate = false_alarm_rate
        self.warmup = warmup
        self.memory = memory
        self.restart(np.empty((0, features)))

    def restart(self, embeddings: Floats) -> None:
        """Begin anew, with these embeddings, (n, d), as the first."""
        self.count = 0
        self._recent: Floats = np.empty((0, self.features))
        self._next = self.warmup
        self._generations: list[tuple[DistanceTest, DirectionTest]] = []
        self._keep(embeddings[-self.warmup :])

    def observe(self, embeddings: Floats) -> Alarm | None:
        """Take in embeddings, (n, d), in their order, up to the one that raises an alarm.

        After an alarm, `restart` the detector.
        """
        if embeddings.ndim != 2 or embeddings.shape[1] != self.features:
            raise InputError(f"embeddings here are (batch, {self.features}), got {embeddings.shape}")
        rows = embeddings.astype(np.float64, copy=False)
        start = 0
        while start < len(rows):
            part = rows[start : start + min(self._next - self.count, REFERENCE)]
            alarms = [test.observe(part) for tests in self._generations for test in tests]
            alarm = min((alarm for alarm in alarms if alarm is not None), default=None)
            if alarm is not None:
                self._keep(part[: alarm.position + 1])
                return Alarm(start + alarm.position, alarm.since)
            self._keep(part)
            start += len(part)
        return None

    def recent(self, count: int) -> Floats:
        """The last embeddings, (at most count, d); no more than `REFERENCE` are kept."""
        return self._recent[max(0, len(self._recent) - count) :]

    @property
    def ready(self) -> bool:
        """Whether the test has begun."""
        return bool(self._generations)

    @property
    def evidence(self) -> float:
        """How near the alarm is, 0 to 1: the logarithm of the evidence, as a share of that of the threshold."""
        return max((test.evidence.share for tests in self._generations for test in tests), default=0.0)

    def _keep(self, rows: Floats) -> None:
        """Count samples and keep the last of them; begin a new generation where it is time."""
        self.count += len(rows)
        self._recent = np.concatenate([self._recent, rows])[-REFERENCE:]
        if self.count == self._next:
            spread, threshold = Spread(self._recent), TESTS / self.false_alarm_rate
            generation = DistanceTest(spread, threshold), DirectionTest(spread, len(self._recent), threshold)
            self._generations = [*self._generations[-1:], generation]
            self._next += min(self._next, self.memory)

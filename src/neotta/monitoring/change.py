"""Detection of sudden changes in a stream of embeddings, with a bound on false alarms.

A test must not be fitted on the samples that it ranks, so it is fitted on past samples and applied to later ones. It is
refitted after 1, 2, 4, … times `warmup` samples, then every `memory` samples. Two generations run at any time, the
younger one while it collects ranks; each consists of two tests, and each of these four gets a quarter of the allowed
rate. So if the embeddings are independent and identically distributed, the probability of a false alarm within n
samples of the start is at most `false_alarm_rate` · n.
"""

from __future__ import annotations

import numpy as np

from neotta.errors import InputError, OptionError
from neotta.monitoring.rank_evidence import Alarm, Floats
from neotta.monitoring.scores import DirectionTest, DistanceTest, Spread

REFERENCE = 256
"""Maximum number of samples kept, to fit the tests and to look back after a change."""

TESTS = 4


class ChangeDetector:
    """Raises an alarm when the embeddings of a stream change suddenly; see the top of this file.

    Args:
        features: Length d of an embedding.
        false_alarm_rate: Bound on false alarms, per sample.
        warmup: Number of samples before the test starts.
        memory: Number of samples after which the tests are refitted, in the long run.
    """

    def __init__(self, features: int, *, false_alarm_rate: float = 1e-6, warmup: int = 128, memory: int = 1024) -> None:
        if not isinstance(false_alarm_rate, float) or not 0.0 < false_alarm_rate < 1.0:
            raise OptionError(f"false_alarm_rate is {false_alarm_rate!r}: expected a float between 0 and 1")
        if not isinstance(warmup, int) or warmup < 2:
            raise OptionError(f"warmup is {warmup!r}: expected at least 2 samples, better 64 or more")
        if not isinstance(memory, int) or memory < warmup:
            raise OptionError(f"memory is {memory!r}: expected an integer, at least warmup ({warmup})")
        self.features = features
        self.false_alarm_rate = false_alarm_rate
        self.warmup = warmup
        self.memory = memory
        self.restart(np.empty((0, features)))

    def restart(self, embeddings: Floats) -> None:
        """Restart with these embeddings, (n, d), as the first."""
        self.count = 0
        self._recent: Floats = np.empty((0, self.features))
        self._next = self.warmup
        self._generations: list[tuple[DistanceTest, DirectionTest]] = []
        self._keep(embeddings[-self.warmup :])

    def observe(self, embeddings: Floats) -> Alarm | None:
        """Add embeddings, (n, d), in order, up to the one that raises an alarm.

        Call `restart` after an alarm.
        """
        if embeddings.ndim != 2 or embeddings.shape[1] != self.features:
            raise InputError(f"expected embeddings of shape (batch, {self.features}), got {embeddings.shape}")
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
        """The last embeddings, (at most count, d); at most `REFERENCE` are kept."""
        return self._recent[max(0, len(self._recent) - count) :]

    @property
    def ready(self) -> bool:
        """Whether the test has started."""
        return bool(self._generations)

    @property
    def evidence(self) -> float:
        """How close the alarm is, 0 to 1: log of the evidence as a fraction of that of the threshold."""
        return max((test.evidence.share for tests in self._generations for test in tests), default=0.0)

    def _keep(self, rows: Floats) -> None:
        """Count samples and keep the last ones; start a new generation when it is due."""
        self.count += len(rows)
        self._recent = np.concatenate([self._recent, rows])[-REFERENCE:]
        if self.count == self._next:
            spread, threshold = Spread(self._recent), TESTS / self.false_alarm_rate
            generation = DistanceTest(spread, threshold), DirectionTest(spread, len(self._recent), threshold)
            self._generations = [*self._generations[-1:], generation]
            self._next += min(self._next, self.memory)

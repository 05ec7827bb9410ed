"""Two ways to turn embeddings into ranks: how unusual each one is, and how far it lies where the latest ones went."""

from __future__ import annotations

import numpy as np

from neotta.monitoring.rank_evidence import Alarm, Floats, RankEvidence, ranks

DIRECTIONS = 32
"""At most so many directions get a variance of their own."""

LEAST_SPREAD = 1e-3
"""The smallest variance of a direction, as a share of the mean one: some embeddings have features that are always 0."""

ROUNDING = 1e-6
"""Scores that differ by less than this share are equal."""

CHUNK = 16
"""After so many samples, at most, a direction is learnt anew."""

WINDOW = 64
"""The direction comes from the latest samples; these have a weight of 1 / WINDOW each, and older ones less."""


class Spread:
    """How embeddings are spread about their mean: probabilistic PCA.

    Trained classifiers let their embeddings vary mostly with the class, in few directions; a new domain often shows in
    the others, where the spread is small. So the directions of largest variance get a variance of their own, and all
    others one together.

    Args:
        reference: Embeddings, (n, d), n at least 2.
    """

    def __init__(self, reference: Floats) -> None:
        n, d = reference.shape
        self.mean: Floats = reference.mean(0)
        _, singular, directions = np.linalg.svd(reference - self.mean, full_matrices=False)
        variances = singular**2 / (n - 1)
        kept = min(DIRECTIONS, len(variances) - 1)
        # Embeddings that are all the same, but for rounding, get some spread too.
        total = max(float(variances.sum()), LEAST_SPREAD**2 * float(self.mean @ self.mean)) or 1.0
        rest = (total - float(variances[:kept].sum())) / max(d - kept, 1)
        self._rest = max(rest, LEAST_SPREAD * total / d)
        self._directions = directions[:kept]
        self._extra = 1 / np.maximum(variances[:kept], self._rest) - 1 / self._rest

    def precision(self, offsets: Floats) -> Floats:
        """Offsets times the inverse of the covariance, (n, d) to (n, d)."""
        along = offsets @ self._directions.T
        return offsets / self._rest + (along * self._extra) @ self._directions  # type: ignore[no-any-return]

    def distance(self, embeddings: Floats) -> Floats:
        """Squared distance from the mean in units of the spread, (n, d) to (n,)."""
        offsets = embeddings - self.mean
        along = offsets @ self._directions.T
        return np.square(offsets).sum(1) / self._rest + (np.square(along) * self._extra).sum(1)  # type: ignore[no-any-return]


class DistanceTest:
    """Ranks each embedding by its distance from the reference: quick where single samples look different.

    Args:
        spread: Of the reference.
        threshold: See `RankEvidence`.
    """

    def __init__(self, spread: Spread, threshold: float) -> None:
        self.evidence = RankEvidence(threshold, tails=2)
        self._spread = spread
        self._seen: Floats = np.empty(0)

    def observe(self, rows: Floats) -> Alarm | None:
        """Take in embeddings, (n, d), up to the one that raises an alarm."""
        scores = self._spread.distance(rows)
        alarm = self.evidence.observe(*ranks(scores, self._seen, ROUNDING * np.abs(scores)))
        self._seen = np.sort(np.append(self._seen, scores), kind="stable")
        return alarm


class DirectionTest:
    """Ranks embeddings along the direction in which the latest ones moved: finds small shifts of all samples.

    Every second sample is used to learn the direction; the others are ranked along it, among their like. To those the
    direction is given from outside: it treats them alike, as valid ranks demand.

    Args:
        spread: Of the reference.
        count: How many samples its mean stands for.
        threshold: See `RankEvidence`. It counts the samples of both kinds.
    """

    def __init__(self, spread: Spread, count: int, threshold: float) -> None:
        self.evidence = RankEvidence(threshold / 2, tails=1)
        self._spread = spread
        self._mean, self._count = spread.mean, count
        self._latest = spread.mean
        self._tested: Floats = np.empty((0, len(spread.mean)), dtype=np.float32)
        self._turn = 0

    def observe(self, rows: Floats) -> Alarm | None:
        """Take in embeddings, (n, d), up to the one that raises an alarm."""
        for start in range(0, len(rows), CHUNK):
            alarm = self._observe(rows[start : start + CHUNK])
            if alarm is not None:
                return Alarm(start + alarm.position, alarm.since)
        return None

    def _observe(self, rows: Floats) -> Alarm | None:
        first = self._turn
        self._turn = (first + len(rows)) % 2
        ranked, learnt = (rows[1 - first :: 2] - self._spread.mean).astype(np.float32), rows[first::2]
        alarm = self._rank(ranked) if len(ranked) else None
        for row in learnt:
            self._count += 1
            self._mean = self._mean + (row - self._mean) / self._count
            self._latest = self._latest + (row - self._latest) / WINDOW
        return None if alarm is None else Alarm(1 - first + 2 * alarm.position, 2 * alarm.since)

    def _rank(self, offsets: Floats) -> Alarm | None:
        direction = self._spread.precision((self._latest - self._mean)[None])[0].astype(np.float32)
        slack = ROUNDING * np.linalg.norm(offsets, axis=1) * np.linalg.norm(direction)
        above, _ = ranks(offsets @ direction, np.sort(self._tested @ direction), slack)
        self._tested = np.concatenate([self._tested, offsets])
        return self.evidence.observe(above)

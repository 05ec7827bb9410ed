"""Two scores for embeddings: distance from the reference, and position along the direction of the latest shift."""

from __future__ import annotations

import numpy as np

from neotta.monitoring.rank_evidence import Alarm, Floats, RankEvidence, ranks

DIRECTIONS = 32
"""Maximum number of directions with their own variance."""

LEAST_SPREAD = 1e-3
"""Minimum variance of a direction, as a fraction of the mean one: some features may always be 0."""

ROUNDING = 1e-6
"""Relative difference below which scores are ties."""

CHUNK = 16
"""Maximum number of samples between updates of the direction."""

WINDOW = 64
"""The direction is a moving average in which a new sample has the weight 1 / WINDOW."""


class Spread:
    """Spread of embeddings around their mean: probabilistic PCA.

    The embeddings of trained classifiers vary mostly with the class, in few directions; a new domain often shows in the
    others, where the spread is small. So the directions of largest variance have their own variance, and all others
    share one.

    Args:
        reference: Embeddings, (n, d), n at least 2.
    """

    def __init__(self, reference: Floats) -> None:
        n, d = reference.shape
        self.mean: Floats = reference.mean(0)
        _, singular, directions = np.linalg.svd(reference - self.mean, full_matrices=False)
        variances = singular**2 / (n - 1)
        kept = min(DIRECTIONS, len(variances) - 1)
        # Embeddings that are equal up to rounding get some spread too.
        total = max(float(variances.sum()), LEAST_SPREAD**2 * float(self.mean @ self.mean)) or 1.0
        rest = (total - float(variances[:kept].sum())) / max(d - kept, 1)
        self._rest = max(rest, LEAST_SPREAD * total / d)
        self._directions = directions[:kept]
        self._extra = 1 / np.maximum(variances[:kept], self._rest) - 1 / self._rest

    def precision(self, offsets: Floats) -> Floats:
        """Multiply offsets by the inverse covariance, (n, d) to (n, d)."""
        along = offsets @ self._directions.T
        return offsets / self._rest + (along * self._extra) @ self._directions  # type: ignore[no-any-return]

    def distance(self, embeddings: Floats) -> Floats:
        """Squared distance from the mean in units of the spread, (n, d) to (n,)."""
        offsets = embeddings - self.mean
        along = offsets @ self._directions.T
        return np.square(offsets).sum(1) / self._rest + (np.square(along) * self._extra).sum(1)  # type: ignore[no-any-return]


class DistanceTest:
    """Ranks embeddings by their distance from the reference: fast if single samples look different.

    Args:
        spread: Spread of the reference.
        threshold: See `RankEvidence`.
    """

    def __init__(self, spread: Spread, threshold: float) -> None:
        self.evidence = RankEvidence(threshold, tails=2)
        self._spread = spread
        self._seen: Floats = np.empty(0)

    def observe(self, rows: Floats) -> Alarm | None:
        """Add embeddings, (n, d), up to the one that raises an alarm."""
        scores = self._spread.distance(rows)
        alarm = self.evidence.observe(*ranks(scores, self._seen, ROUNDING * np.abs(scores)))
        self._seen = np.sort(np.append(self._seen, scores), kind="stable")
        return alarm


class DirectionTest:
    """Ranks embeddings along the direction of the latest shift: detects small shifts of all samples.

    Every second sample is used to learn the direction; the others are ranked along it, among each other. The direction
    does not depend on the ranked samples, so their ranks are valid.

    Args:
        spread: Spread of the reference.
        count: Number of samples of the reference.
        threshold: See `RankEvidence`; refers to all samples, learnt from or ranked.
    """

    def __init__(self, spread: Spread, count: int, threshold: float) -> None:
        self.evidence = RankEvidence(threshold / 2, tails=1)
        self._spread = spread
        self._mean, self._count = spread.mean, count
        self._latest = spread.mean
        self._tested: Floats = np.empty((0, len(spread.mean)), dtype=np.float32)
        self._turn = 0

    def observe(self, rows: Floats) -> Alarm | None:
        """Add embeddings, (n, d), up to the one that raises an alarm."""
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

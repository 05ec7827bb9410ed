"""Detection of sudden changes in a stream of embeddings, with a bound on false alarms that needs no distribution.

How it works, and why the bound holds:

1. *Ranks.* If the samples behind the numbers s_1, s_2, … are independent and identically distributed, then the
   rank r_n of s_n among the first n is uniform on 1 … n and independent of all earlier ranks. No mean, variance or tail
   is assumed. The numbers may even be recomputed at every n, if this treats the first n samples alike.
2. *Bets.* A bet on a rank is b(r) = r^(ε-1), divided by its mean over 1 … n. Its expectation is exactly 1 while nothing
   changes. It pays off when numbers are larger than before (r counted from above) or smaller (from below). Ties are
   ranked against the bet.
3. *Evidence.* The Shiryaev-Roberts statistic R_n = (1 + R_(n-1)) b_n sums, over every possible time of the change,
   the winnings of a bettor who started then. While nothing changes, R_n - n is a martingale, so that at any
   bounded stopping time T: E[R_T] = E[T]. The same holds for the mean over several bets.
4. *Rate.* Let T be the first n with R_n ≥ A. Then A P(T ≤ n) ≤ E[R_min(T,n)] ≤ n, that is P(T ≤ n) ≤ n / A: the
   probability of a false alarm within n numbers is at most n / A, for every n.

A test must not be fitted on the samples that it ranks, so it is fitted on past samples and applied to later ones. It is
refitted after 1, 2, 4, … times `warmup` samples, then every `memory` samples. Two generations run at any time, the
younger one while it collects ranks; each consists of two tests, and each of these four gets a quarter of the allowed
rate. So if the embeddings are independent and identically distributed, the probability of a false alarm within n
samples of the start is at most `false_alarm_rate` · n. Frames of a camera depend on each other, and a new scene is a
change too: give it one embedding per scene.

See V. Vovk, "Testing randomness online" (Statistical Science, 2021), for conformal martingales and the
Shiryaev-Roberts procedure on top of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from neotta.errors import InputError, OptionError
from neotta.neo.state import LARGEST

Floats = NDArray[np.floating]
Ranks = NDArray[np.int64]

EXPONENTS = np.array([0.15, 0.35, 0.6])
"""ε of the bets: small ones are best for numbers beyond all seen before, large ones for a slight change."""
REFERENCE = 256  # maximum number of samples kept, to fit the tests and to look back after a change
TESTS = 4
DIRECTIONS = 32  # maximum number of directions with their own variance
LEAST_SPREAD = 1e-3  # minimum variance of a direction, as a fraction of the mean one: some features may always be 0
ROUNDING = 1e-6  # relative difference below which scores are ties
CHUNK = 16  # maximum number of samples between updates of the direction
WINDOW = 64  # the direction is a moving average in which a new sample has the weight 1 / WINDOW


class Alarm(NamedTuple):
    """Position at which the evidence crossed the threshold."""

    position: int  # of the number (or sample) that crossed it, within this call
    since: int  # number of samples, this one included, since the most likely time of the change


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
        """Add embeddings, (n, d), in order, up to the one that raises an alarm; call `restart` after it.

        Rows with NaN, Inf or numbers beyond 1e6 are left out.
        """
        if embeddings.ndim != 2 or embeddings.shape[1] != self.features:
            raise InputError(f"expected embeddings of shape (batch, {self.features}), got {embeddings.shape}")
        places = np.flatnonzero((np.abs(embeddings) <= LARGEST).all(1))
        rows = embeddings[places].astype(np.float64, copy=False)
        start = 0
        while start < len(rows):
            part = rows[start : start + min(self._next - self.count, REFERENCE)]
            alarms = [test.observe(part) for tests in self._generations for test in tests]
            alarm = min((alarm for alarm in alarms if alarm is not None), default=None)
            if alarm is not None:
                self._keep(part[: alarm.position + 1])
                return Alarm(int(places[start + alarm.position]), alarm.since)
            self._keep(part)
            start += len(part)
        return None

    def recent(self, count: int) -> Floats:
        """The last embeddings, (at most count, d); at most `REFERENCE` are kept."""
        return self._recent[max(0, len(self._recent) - count) :]

    def _keep(self, rows: Floats) -> None:
        """Count samples and keep the last ones; start a new generation when it is due."""
        self.count += len(rows)
        self._recent = np.concatenate([self._recent, rows])[-REFERENCE:]
        if self.count == self._next:
            spread, threshold = Spread(self._recent), TESTS / self.false_alarm_rate
            generation = DistanceTest(spread, threshold), DirectionTest(spread, len(self._recent), threshold)
            self._generations = [*self._generations[-1:], generation]
            self._next += min(self._next, self.memory)


class Spread:
    """Spread of embeddings, (n, d), n at least 2, around their mean: probabilistic PCA.

    The embeddings of trained classifiers vary mostly with the class, in few directions; a new domain often shows in the
    others, where the spread is small. So the directions of largest variance have their own variance, and all others
    share one.
    """

    def __init__(self, reference: Floats) -> None:
        n, d = reference.shape
        self.mean: Floats = reference.mean(0)
        _, singular, directions = np.linalg.svd(reference - self.mean, full_matrices=False)
        variances = singular**2 / (n - 1)
        count = min(DIRECTIONS, len(variances) - 1)
        # Embeddings that are equal up to rounding get some spread too.
        total = max(float(variances.sum()), LEAST_SPREAD**2 * float(self.mean @ self.mean)) or 1.0
        rest = (total - float(variances[:count].sum())) / max(d - count, 1)
        self._rest = max(rest, LEAST_SPREAD * total / d)
        self._directions = directions[:count]
        self._extra = 1 / np.maximum(variances[:count], self._rest) - 1 / self._rest

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
    """Ranks embeddings by their distance from the reference: fast if single samples look different."""

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
    does not depend on the ranked samples, so their ranks are valid. The threshold refers to all samples, learnt from or
    ranked; `count` is the number of those of the reference.
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


def ranks(numbers: Floats, seen: Floats, slack: Floats) -> tuple[Ranks, Ranks]:
    """Rank each number among itself and those before it, from above and from below; ties count against it.

    The new numbers, (n,), are in order, those seen before, (m,), are sorted. Numbers closer than the slack, (n,), are
    ties, so that rounding does not decide.
    """
    low, high = numbers - slack, numbers + slack
    earlier = np.tri(len(numbers), k=-1, dtype=bool)
    above = len(seen) - np.searchsorted(seen, low, "left") + ((numbers[None] >= low[:, None]) & earlier).sum(1) + 1
    below = np.searchsorted(seen, high, "right") + ((numbers[None] <= high[:, None]) & earlier).sum(1) + 1
    return above, below


class RankEvidence:
    """Accumulates the winnings of bets on ranks; see the top of this file.

    Args:
        threshold: A; the probability of a false alarm within n numbers is at most n / A.
        tails: Number of ranks per number: 1, or 2 (from above and from below).
    """

    def __init__(self, threshold: float, tails: int) -> None:
        bets = tails * len(EXPONENTS)
        self.limit = float(np.log(threshold))
        self._count = 0
        self._sum = np.zeros(len(EXPONENTS))  # of r^(ε-1) over 1 … n
        self._log_r = np.full(bets, -np.inf)
        self._won = np.zeros(bets)  # logarithm of the winnings of each bet since the start
        self._lowest = np.zeros(bets)  # … its minimum, at the most likely time of the change
        self._lowest_at = np.zeros(bets, dtype=np.int64)
        self.log_r = -np.inf
        """log R_n, where R_n is the mean over the bets."""

    def observe(self, *tails: Ranks) -> Alarm | None:
        """Add the ranks of n numbers, (n,) for each tail, up to the one that raises an alarm."""
        if len(tails[0]) == 0:
            return None
        won = self._won + np.cumsum(self._bets(tails), axis=0)  # (n, bets)
        before = np.concatenate([self._won[None], won[:-1]])
        # closed form of the recursion: R_n = B_n (R_0 / B_0 + Σ 1 / B_(i-1)), B_n the product of the bets so far
        log_r = won + np.logaddexp(self._log_r - self._won, np.logaddexp.accumulate(-before, axis=0))
        mean = np.logaddexp.reduce(log_r, axis=1) - np.log(log_r.shape[1])
        crossed = np.flatnonzero(mean >= self.limit)
        last = int(crossed[0]) if len(crossed) else len(mean) - 1
        self._note_lowest(before[: last + 1])
        self._count += last + 1
        self._won, self._log_r, self.log_r = won[last], log_r[last], float(mean[last])
        return Alarm(last, self._count - int(self._lowest_at[log_r[last].argmax()])) if len(crossed) else None

    def _bets(self, tails: tuple[Ranks, ...]) -> Floats:
        total = np.arange(self._count + 1, self._count + len(tails[0]) + 1, dtype=np.float64)[:, None]
        sums = self._sum + np.cumsum(total ** (EXPONENTS - 1), axis=0)
        self._sum = sums[-1]
        mean = np.log(sums / total)
        return np.concatenate([(EXPONENTS - 1) * np.log(tail)[:, None] - mean for tail in tails], axis=1)

    def _note_lowest(self, before: Floats) -> None:
        at = before.argmin(axis=0)
        low = before[at, np.arange(before.shape[1])]
        lower = low < self._lowest
        self._lowest = np.where(lower, low, self._lowest)
        self._lowest_at = np.where(lower, self._count + at, self._lowest_at)

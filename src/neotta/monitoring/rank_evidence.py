"""Distribution-free evidence that a stream of numbers has changed.

How it works, and why the bound on false alarms holds:

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

See V. Vovk, "Testing randomness online" (Statistical Science, 2021), for conformal martingales and the
Shiryaev-Roberts procedure on top of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]
Ranks = NDArray[np.int64]

EXPONENTS = np.array([0.15, 0.35, 0.6])
"""ε of the bets: small ones are best for numbers beyond all seen before, large ones for a slight change."""


class Alarm(NamedTuple):
    """Position at which the evidence crossed the threshold."""

    position: int  # of the number (or sample) that crossed it, within this call
    since: int  # number of samples, this one included, since the most likely time of the change


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
        self._limit = float(np.log(threshold))
        self._count = 0
        self._sum = np.zeros(len(EXPONENTS))  # of r^(ε-1) over 1 … n
        self._log_r = np.full(bets, -np.inf)
        self._won = np.zeros(bets)  # logarithm of the winnings of each bet since the start
        self._lowest = np.zeros(bets)  # … its minimum, at the most likely time of the change
        self._lowest_at = np.zeros(bets, dtype=np.int64)
        self.log_r = -np.inf
        """log R_n, where R_n is the mean over the bets."""

    @property
    def share(self) -> float:
        """How close the alarm is, 0 to 1: log R as a fraction of log A."""
        return float(np.clip(self.log_r / self._limit, 0.0, 1.0))

    def observe(self, *tails: Ranks) -> Alarm | None:
        """Add the ranks of n numbers, (n,) for each tail, up to the one that raises an alarm."""
        if len(tails[0]) == 0:
            return None
        won = self._won + np.cumsum(self._bets(tails), axis=0)  # (n, bets)
        before = np.concatenate([self._won[None], won[:-1]])
        # closed form of the recursion: R_n = B_n (R_0 / B_0 + Σ 1 / B_(i-1)), B_n the product of the bets so far
        log_r = won + np.logaddexp(self._log_r - self._won, np.logaddexp.accumulate(-before, axis=0))
        mean = np.logaddexp.reduce(log_r, axis=1) - np.log(log_r.shape[1])
        crossed = np.flatnonzero(mean >= self._limit)
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

"""Drawing the samples of one domain, from (seed, domain) alone.

Every method, worker and machine then sees the same samples in the same order, and a domain's order does not
change when other domains come before it, after it or between. All randomness comes from `generator`: the
SHA-256 of the JSON list `[seed, name, purpose]`, read as eight little-endian 32-bit words, seeds NumPy's
`RandomState`, whose numbers are promised never to change. The one exception is `split`, the permutation of
the published experiments.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from neotta.data._numbers import check_real, checked_seed, whole
from neotta.errors import DataError

Indices = NDArray[np.int64]
"""Positions of samples in their dataset, (n,) int64."""


def digest(seed: int, name: str, purpose: str) -> bytes:
    """Hash a seed, a name and what they are used for, 32 bytes."""
    return hashlib.sha256(json.dumps([checked_seed(seed), name, purpose]).encode()).digest()


def generator(seed: int, name: str, purpose: str) -> np.random.RandomState:
    """Make the random generator that belongs to a seed and a domain (or camera)."""
    words = np.frombuffer(digest(seed, name, purpose), dtype="<u4")
    return np.random.RandomState(words.astype(np.uint32))


def split(total: int, adapt: int, seed: int) -> tuple[Indices, Indices]:
    """Split samples as the published experiments do.

    The permutation is `torch.randperm` with a fresh CPU generator, so it is the same for every domain of one
    size: the adaptation samples of fog and of snow are then the same pictures.

    Args:
        total: Number of samples of the dataset.
        adapt: How many adapt; the rest validates. -1: everything adapts and nothing validates.
        seed: Seed of the run.

    Returns:
        Positions that adapt, (adapt,), and positions that validate, (total - adapt,).
    """
    import torch

    adapt = take(total, adapt)
    order = torch.randperm(total, generator=torch.Generator().manual_seed(checked_seed(seed))).numpy()
    return order[:adapt], order[adapt:]


def take(available: int, samples: int, what: str = "samples") -> int:
    """Check a number of samples against how many there are; -1 means all of them."""
    samples = whole(f"the number of {what} (-1: all)", samples, -1)
    if samples > available:
        raise DataError(f"{samples} {what} are asked for but there are only {available}: ask for fewer, or -1")
    return available if samples == -1 else samples


def shuffled(total: int, seed: int, domain: str) -> Indices:
    """Order all samples of a domain at random, (total,)."""
    return generator(seed, domain, "order").permutation(total).astype(np.int64)


def arrivals(count: int, seed: int, name: str) -> NDArray[np.float64]:
    """Draw when the samples of one domain or camera arrive, (count,), increasing in [0, 1).

    Merging several such sequences by time interleaves them uniformly at random, and leaving one of them out
    does not change the order of the others.
    """
    return np.sort(generator(seed, name, "arrival").random_sample(count))


@dataclass(frozen=True)
class Skew:
    """How the labels of an order differ from an even, independent draw.

    Attributes:
        ratio: Long tail: the class of rank r = 0 ... C - 1 keeps the share ratio^(-r / (C - 1)) of its
            samples (at least one), ranks drawn at random. Where all classes are equally large, the first is
            then `ratio` times the last. 1: all stay.
        delta: Temporal correlation: each class is spread over the slots of the order with shares from a
            symmetric Dirichlet distribution of this concentration. Small: a class comes nearly all at once
            (0.1 is usual); large: as good as independent. None: independent.
        slots: Number of slots; None: as many as there are classes.
    """

    ratio: float = 1.0
    delta: float | None = None
    slots: int | None = None

    def __post_init__(self) -> None:
        check_real("ratio", self.ratio, 1)
        if self.delta is not None:
            check_real("delta, if not None,", self.delta, 1e-6)
        if self.slots is not None:
            whole("slots, if not None,", self.slots, 1)

    def order(self, labels: NDArray[np.int64], seed: int, domain: str, samples: int = -1) -> Indices:
        """Order the samples of a domain by their labels, (N,): the long tail first, then the number, then the slots."""
        order = shuffled(len(labels), seed, domain)
        if self.ratio > 1:
            order = _long_tail(order, labels, self.ratio, generator(seed, domain, "tail"))
        order = order[: take(len(order), samples)]
        return order[self.burst(labels[order], seed, domain)]

    def burst(self, labels: NDArray[np.int64], seed: int, name: str) -> Indices:
        """Arrange samples in slots, (N,) positions among them; as they are if `delta` is None."""
        if self.delta is None:
            return np.arange(len(labels), dtype=np.int64)
        random, members = generator(seed, name, "slots"), _members(labels)
        slot = np.zeros(len(labels), dtype=np.int64)
        for mine in members.values():
            ends = np.cumsum(_dirichlet(self.delta, self.slots or len(members), random))[:-1]
            slot[mine] = np.searchsorted(ends, (np.arange(len(mine)) + 0.5) / len(mine))
        return np.lexsort((random.random_sample(len(labels)), slot))


def few_classes(
    labels: NDArray[np.int64], samples: int, classes: int, seed: int, domain: str
) -> tuple[Indices, Indices, Indices]:
    """Draw samples of a few classes as evenly as possible.

    The classes are the first of a random order; samples are dealt to them in turn, so that the first
    `samples % classes` get one more. A class that has run out is passed over.

    Returns:
        Positions drawn, (samples,); all other positions, (N - samples,); both in the domain's order.
        The classes, (classes,), in the order in which they were dealt to.
    """
    present = np.unique(labels)
    classes = whole(f"classes (there are {len(present)} in {domain!r})", classes, 1, len(present))
    chosen = generator(seed, domain, "classes").permutation(present)[:classes]
    order = shuffled(len(labels), seed, domain)
    members = _members(labels[order])
    dealt = np.concatenate([np.arange(len(members[int(c)])) * classes + rank for rank, c in enumerate(chosen)])
    eligible = np.concatenate([members[int(c)] for c in chosen])
    samples = take(len(eligible), samples, f"samples of {classes} classes")
    drawn = np.zeros(len(labels), dtype=bool)
    drawn[eligible[np.argsort(dealt)[:samples]]] = True
    return order[drawn], order[~drawn], chosen.astype(np.int64)


def _long_tail(order: Indices, labels: NDArray[np.int64], ratio: float, random: np.random.RandomState) -> Indices:
    members = _members(labels[order])
    rank = random.permutation(len(members))
    share = ratio ** (-rank / max(len(members) - 1, 1))
    keep = np.zeros(len(order), dtype=bool)
    for mine, part in zip(members.values(), share, strict=True):
        keep[mine[: max(1, round(len(mine) * float(part)))]] = True
    return order[keep]


def _members(labels: NDArray[np.int64]) -> dict[int, Indices]:
    """Find where each class stands in a sequence of labels, classes and positions increasing."""
    classes, counts = np.unique(labels, return_counts=True)
    positions = np.argsort(labels, kind="stable")
    return dict(zip(classes.tolist(), np.split(positions, np.cumsum(counts))[:-1], strict=True))


def _dirichlet(delta: float, count: int, random: np.random.RandomState) -> NDArray[np.float64]:
    """Draw shares that sum to 1, (count,).

    In logarithms, because gamma variates of a small shape underflow to zero, and zeros cannot be normalised.
    Gamma(d) is distributed as Gamma(d + 1) U^(1/d).
    """
    logs = np.log(random.gamma(delta + 1, size=count)) + np.log1p(-random.random_sample(count)) / delta
    shares = np.exp(logs - logs.max())
    return np.asarray(shares / shares.sum(), dtype=np.float64)

"""NEO-Stream: re-centering that survives real streams.

NEO's mean holds the class itself where a stream shows few classes, and subtracting it erases what was to be recognised.
This rule tells shift and label apart by the skewness of the logits, discounts repeated labels, near-duplicates and
outliers, and shrinks what it subtracts by its noise. It acts on logits, W (h - c) + b = (W h + b) - W c, so v stands
for W c. Everything is for a table of streams, (K, ...), of NumPy arrays or torch tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from neotta.neo.class_means import ClassMeans
from neotta.neo.label_prior import START, Labels, expected, followed, observed
from neotta.neo.moments import COUNTS, Groups, namespace
from neotta.neo.shift_estimate import EVER, TINY, dot, shift_of, squared

WARM = 4.0  # from this weight on, near-duplicates are discounted and outliers clipped
DUPLICATE, LEAST = 0.5, 0.02  # a sample nearer to the last one than this part of the variance counts less
CLIP = 3.0  # a sample pulls no farther from the mean than this many root mean squares


class StreamMoments(NamedTuple):
    """What is remembered of streams of centred logits, over all time and over a window.

    Attributes:
        count: Number of samples, (K,), whole numbers.
        batches: Number of batches that held any of them, (K,).
        rejected: Number of rows kept out because of NaN or Inf, (K,).
        weight: Sum of the samples' weights, (K, 2).
        squares: Sum of their squares, (K, 2).
        mean: Weighted mean, (K, 2, C).
        second: Sums of squared distances to the mean, (K, 2, C).
        third: Sums of cubed distances to the mean, (K, 2, C).
        predicted: Expected counts of the predicted classes, (K, 2, C).
        peak: Sum of the expected logits of the predicted classes, (K, 2).
        trust: Sum of the weights in `predicted`, (K, 2).
        previous: The last sample, (K, C).
        shift: The vector v that is subtracted, (K, C).
        start: The vector that v is shrunk towards, (K, C): 0, or where the fleet was when the stream began.
        sticky: See `Labels`, as the three that follow.
        last: (K, C).
        mix: (K, 2, C).
        seen: (K, 2).
    """

    count: Any
    batches: Any
    rejected: Any
    weight: Any
    squares: Any
    mean: Any
    second: Any
    third: Any
    predicted: Any
    peak: Any
    trust: Any
    previous: Any
    shift: Any
    start: Any
    sticky: Any
    last: Any
    mix: Any
    seen: Any

    @property
    def labels(self) -> Labels:
        """What is known of the labels."""
        return Labels(self.sticky, self.last, self.mix, self.seen)


class StreamGroups(Groups, Protocol):
    """Which stream each row of a batch belongs to, in order of arrival."""

    def weighted(self, weights: Any, rows: Any) -> Any:
        """Weighted sum over the rows of each stream, (N, C) to (K, C)."""

    def before(self, rows: Any, counts: Any, stored: Any) -> Any:
        """The row before each row in its stream among those that count, (N, C), or the stored one, (K, C)."""

    def last(self, rows: Any, counts: Any, stored: Any) -> Any:
        """The last row of each stream that counts, (K, C), or the stored one, (K, C)."""

    def sequence(self, turn: Callable[..., Any], state: Any, rows: Any, weights: Any) -> tuple[Any, Any, Any]:
        """Update a state, (K, ...), by the rows (N, C) of each stream in order; see `groups`."""


def softmax(logits: Any) -> Any:
    """Probabilities, (..., C)."""
    xp = namespace(logits)
    powers = logits - xp.amax(logits, -1)[..., None]
    if xp is np:  # without further copies
        np.exp(powers, out=powers)
        powers /= powers.sum(-1)[..., None]
        return powers
    powers = xp.exp(powers)
    return powers / powers.sum(-1)[..., None]


class Constants(NamedTuple):
    """The constants of the rule that users may change; see `StreamRule`."""

    gate: float
    stay: float
    window: float | None
    prior: bool
    classes: ClassMeans | None = None

    def label_prior(self, like: Any) -> Any:
        """How often each class is expected, (C,), or None if nothing is known of it."""
        return None if self.classes is None else self.classes.on(like)[0]


def step(
    state: StreamMoments, logits: Any, weights: Any, bias: Any, groups: StreamGroups, use: Constants
) -> tuple[StreamMoments, Any]:
    """Take in a batch of logits.

    Args:
        state: What is remembered of the K streams of the batch.
        logits: (N, C), finite, in order of arrival.
        weights: How much each row counts, (N,); those of 0 change nothing.
        bias: The bias of the head, centred, (C,).
        groups: Which stream each row belongs to.
        use: The constants.

    Returns:
        What is remembered afterwards, and what to subtract from each row, (N, C).
    """
    xp = namespace(logits)
    y = logits - logits.mean(-1)[..., None] - bias
    counts = weights > 0
    novelty, clipped = _limited(state, y, counts, groups)
    previous = groups.last(y, counts, state.previous)
    old = groups.spread(state.shift)
    labels, log_prior, fresh = state.labels, 0.0, xp.ones_like(weights)
    centred = clipped + (bias - old)
    responsible = softmax(centred)
    if use.prior:
        usual = clipped is y and xp is np and bool((novelty == 1).all())
        likelihood = responsible if usual else softmax(novelty[:, None] * (y + bias - old))
        labels, log_prior, fresh = _sequence(labels, likelihood, weights, groups, use)
    drawn = weights * fresh * novelty.clip(min=LEAST)
    moments = _updated(state, clipped, drawn, responsible, centred, groups, use.window)
    state = state._replace(previous=previous, **labels._asdict(), **moments)
    state = state._replace(shift=shift_of(state, use))
    return state, groups.spread(state.shift) - log_prior


def answer(state: StreamMoments, groups: StreamGroups, use: Constants) -> Any:
    """What to subtract from each row with the state as it is, (N, C)."""
    if not use.prior:
        return groups.spread(state.shift)
    return groups.spread(state.shift - expected(state.labels, use.stay, use.label_prior(state.shift))[2])


def merged(one: StreamMoments, other: StreamMoments, use: Constants) -> StreamMoments:
    """The moments of both: those over all time add up; the window, the labels and the last sample start empty."""
    xp = namespace(one.mean)
    ever = slice(EVER, EVER + 1)
    mine, theirs = (Central(*(getattr(state, name)[:, ever] for name in Central._fields)) for state in (one, other))
    sums = {
        **_joined(mine, theirs)._asdict(),
        **{name: getattr(one, name)[:, ever] + getattr(other, name)[:, ever] for name in SUMS},
    }
    parts = {name: xp.concatenate([values, values * 0.0], 1) for name, values in sums.items()}
    counts = {name: getattr(one, name) + getattr(other, name) for name in COUNTS}
    fresh = {name: getattr(one, name) * 0.0 for name in ("previous", "last", "mix", "seen")}
    share = theirs.weight / xp.where(mine.weight + theirs.weight > 0, mine.weight + theirs.weight, 1.0)
    start = one.start + share * (other.start - one.start)
    state = one._replace(**counts, **parts, **fresh, sticky=one.sticky * 0.0 + START, start=start)
    return state._replace(shift=shift_of(state, use))


SUMS = ("squares", "predicted", "peak", "trust")


class Central(NamedTuple):
    """Weight (...), mean and central moments (..., C) of samples; see `StreamMoments`."""

    weight: Any
    mean: Any
    second: Any
    third: Any


def _joined(one: Central, other: Central) -> Central:
    """The central moments of two sets of samples together; those of one sample, which are 0, may be None."""
    both = one.weight + other.weight
    total = namespace(both).where(both > 0, both, 1.0)[..., None]
    n, m = one.weight[..., None], other.weight[..., None]
    step = other.mean - one.mean
    square = step * step * (n * m / total)
    skewed = square * ((n - m) / total) - one.second * (3 * m / total)
    if other.second is None:
        return Central(both, one.mean + step * (m / total), one.second + square, one.third + step * skewed)
    skewed = skewed + other.second * (3 * n / total)
    return Central(
        both,
        one.mean + step * (m / total),
        one.second + other.second + square,
        one.third + other.third + step * skewed,
    )


def field_shapes(classes: int) -> dict[str, tuple[int, ...]]:
    """The shape of each field of one stream."""
    plain = dict.fromkeys(("weight", "squares", "peak", "trust", "seen"), (2,))
    by_class = dict.fromkeys(("mean", "second", "third", "predicted", "mix"), (2, classes))
    one = dict.fromkeys(("previous", "shift", "start", "last"), (classes,))
    shapes: dict[str, tuple[int, ...]] = {**plain, **by_class, **one, "sticky": (), **dict.fromkeys(COUNTS, ())}
    return {name: shapes[name] for name in StreamMoments._fields}


def _limited(state: StreamMoments, y: Any, counts: Any, groups: StreamGroups) -> tuple[Any, Any]:
    """How new each sample is compared with the one before, (N,), and the samples with outliers pulled in, (N, C)."""
    xp = namespace(y)
    weight = state.weight[:, EVER]
    warm = weight > WARM
    mean = state.mean[:, EVER]
    variance = state.second[:, EVER].sum(-1) / weight.clip(min=1.0)
    power = variance + squared(mean)  # not the variance alone: a frozen picture has none
    away = y - groups.spread(mean)
    length = xp.sqrt(squared(away)).clip(min=1e-12)
    pull = (CLIP * xp.sqrt(groups.spread(power)) / length).clip(max=1.0)
    step = y - groups.before(y, counts, state.previous)
    novelty = (squared(step) / (DUPLICATE * groups.spread(variance.clip(min=TINY)))).clip(max=1.0)
    known = groups.spread(warm)
    novelty = xp.where(known, novelty, 1.0)
    if xp is np and not (known & (pull < 1)).any():  # no outliers, as usual
        return novelty, y
    return novelty, xp.where(known[:, None], groups.spread(mean) + away * pull[:, None], y)


def _sequence(
    labels: Labels, likelihood: Any, weights: Any, groups: StreamGroups, use: Constants
) -> tuple[Labels, Any, Any]:
    """Go through the samples in order of arrival.

    Returns:
        The labels afterwards, the log prior of each sample (N, C), and the probability of a fresh draw (N,).
    """
    prior = use.label_prior(likelihood)
    if isinstance(likelihood, np.ndarray) and len(labels.sticky) == 1:
        return followed(labels, likelihood, weights, use.stay, prior)

    def turn(mine: Labels, sample: Any, weight: Any) -> tuple[Labels, Any, Any]:
        mix, chain, log_prior = expected(mine, use.stay, prior)
        return observed(mine, sample, weight, mix, chain), log_prior, 1 - mine.sticky * use.stay

    return groups.sequence(turn, labels, likelihood, weights)


def _updated(
    state: StreamMoments, y: Any, weights: Any, q: Any, centred: Any, groups: StreamGroups, window: float | None
) -> dict[str, Any]:
    """The moments of both time scales by name, after samples y (N, C) of these weights (N,)."""
    xp = namespace(y)
    total = groups.total(weights)
    some = xp.where(total > 0, total, 1.0)
    mean = groups.weighted(weights, y) / some[:, None]
    batch = Central(total, mean, None, None)
    if not groups.alone:
        away = y - groups.spread(mean)
        square = away * away
        batch = Central(total, mean, groups.weighted(weights, square), groups.weighted(weights, square * away))
    keep = xp.stack([xp.ones_like(total), xp.exp(-total / (window or math.inf))], -1)
    wide, old = keep[..., None], state.weight * keep
    kept = Central(old, state.mean, state.second * wide, state.third * wide)
    both = _joined(kept, Central(*(None if values is None else values[:, None] for values in batch)))
    aged = keep * old / xp.where(both.weight > 0, both.weight, 1.0)  # responsibilities age: older shifts made them
    return {
        **both._asdict(),
        "squares": state.squares * keep**2 + groups.total(weights**2)[:, None],
        "predicted": state.predicted * aged[..., None] + groups.weighted(weights, q)[:, None],
        "peak": state.peak * aged + groups.total(weights * dot(q, centred))[:, None],
        "trust": state.trust * aged + total[:, None],
    }

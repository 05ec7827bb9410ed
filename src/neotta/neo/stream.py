"""NEO-Stream: re-centering that survives real streams.

NEO's mean holds the class itself where a stream shows few classes, and subtracting it erases what was to be recognised.
This rule subtracts the shift, not the classes: it tells them apart by the skewness of the logits, discounts repeated
labels, near-duplicates and outliers, and shrinks what it subtracts by its noise. It acts on logits: W (h - c) + b =
(W h + b) - W c, and v stands for W c. Everything is for K streams at once, with rows (K, T, C) in order of arrival.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from pydantic import Field as Option
from torch import Tensor
from torch.compiler import is_exporting
from torch.nn import functional as F

from neotta.neo.clean_logits import CleanLogits
from neotta.neo.state import TALLIES, Field, Layout, Rule, taken

GATE, GATE_MANY, MANY = 0.6, 0.5, 500  # least skewness of the logits: about three visible classes; from 500 classes on
START, SHARE = 0.1, 1 / 256  # prior weight of the sticky chain, and how much of it always remains
SMOOTH, RECENT = 3.0, 16.0  # pseudo-samples spread over all classes, and the memory of the recent mix, in samples
BOOST = 1.0  # the label prior raises no logit by more than this
BLOCK = 64  # samples that are judged by one mix of labels: those of a call, at most so many
WARM = 4.0  # from this weight on, near-duplicates are discounted and outliers clipped
DUPLICATE, LEAST = 0.5, 0.02  # a sample nearer to the last one than this part of the variance counts less
CLIP = 3.0  # a sample pulls no farther from the mean than this many root mean squares
WIDE = 0.8  # the logit of a class with a majority varies at least so much as the others do on average
FEWEST = 1.5  # so many effective samples are too few
FEWEST_CLASSES = 3  # with two, a shift and a label prior are one number
TINY, FLAT = 1e-12, 1e-9
# Samples whose chances are multiplied at a time, and the least chance, so that the products stay in range.
PART = {torch.float64: (22, 1e-13), torch.float32: (4, 1e-7)}


class StreamState(NamedTuple):
    """The fields of the states of K streams of logits; see `Moments` for `ever` and `lately`."""

    tallies: Tensor  # see `Layout`, (K, 3)
    ever: Tensor  # moments over all time, (K, 4 + 4C)
    lately: Tensor  # moments over the window, (K, 4 + 4C)
    previous: Tensor  # the last sample, (K, C)
    shift: Tensor  # the vector v that is subtracted, (K, C)
    sticky: Tensor  # weight w of the sticky chain, (K,)
    last: Tensor  # distribution of the last label under the chain, (K, C), once a sample was seen
    labels: Tensor  # expected counts of the labels, over all time and lately, (K, 2, C)
    seen: Tensor  # sums of the labels, (K, 2)

    def mix(self, clean: CleanLogits | None) -> Tensor:
        """The mix of labels so far, (K, C); at first all are equally likely, or as likely as in clean data."""
        smooth = SMOOTH / self.labels.shape[-1] if clean is None else SMOOTH * clean.on(self.labels)[0]
        return ((self.labels + smooth) / (self.seen + SMOOTH)[..., None]).mean(1)


class Moments(NamedTuple):
    """Weighted sums over the samples of a time scale, (...) or (..., C)."""

    weight: Tensor  # sum of the weights
    sum1: Tensor  # sum of the samples
    sum2: Tensor  # sum of their squares
    sum3: Tensor  # sum of their cubes
    squares: Tensor  # sum of the squared weights
    trust: Tensor  # sum of the weights in `predicted`
    peak: Tensor  # sum of the expected logits of the predicted classes
    predicted: Tensor  # expected counts of the predicted classes

    @classmethod
    def of(cls, scales: Tensor) -> Moments:
        """Views of the columns of time scales, (..., 4 + 4C)."""
        classes = scales.shape[-1] // 4 - 1
        weight, sum1, sum2, sum3, squares, trust, peak, predicted = torch.split(
            scales, [1, classes, classes, classes, 1, 1, 1, classes], -1
        )
        return cls(weight[..., 0], sum1, sum2, sum3, squares[..., 0], trust[..., 0], peak[..., 0], predicted)


class Estimates(NamedTuple):
    """What the time scales of K streams say of the shift, each by itself."""

    enough: Tensor  # whether there are enough samples that differ, (K, 2)
    visible: Tensor  # whether enough classes are visible to tell shift from label, (K, 2)
    mixed: Tensor  # whether no class has more than half of the samples, (K, 2)
    shift: Tensor  # the shift, (K, 2, C)
    noise: Tensor  # squared length of the error to expect of it, (K, 2)
    variance: Tensor  # total variance of the samples, (K, 2)


class StreamRule(Rule):
    """Subtract the shift of a stream's logits, not its classes. A lower gate gains more and harms more."""

    space = "logits"

    gate: float | None = Option(
        default=None,
        ge=0,
        description="Least skewness at which shift and label can be told apart; None: 0.6 (from 500 classes on 0.5).",
    )
    stay: float = Option(
        default=0.98, gt=0, lt=1, description="Probability that a sticky stream repeats its last label."
    )
    window: float | None = Option(
        default=32.0, gt=0, description="The short time scale in label draws; None for all time."
    )
    prior: bool = Option(default=True, description="Use the order of the samples; off where it means nothing.")

    def fields(self, size: int) -> dict[str, Field]:
        """See `StreamState`."""
        scale, vector = (4 + 4 * size,), (size,)
        return {
            "ever": Field(scale),
            "lately": Field(scale, "keep"),
            "previous": Field(vector, "keep"),
            "shift": Field(vector, "keep"),
            "sticky": Field((), "keep", START, 0.0, 1.0),
            "last": Field(vector, "keep", least=0.0),
            "labels": Field((2, size), "keep", least=0.0),
            "seen": Field((2,), "keep", least=0.0),
        }

    def state(self, states: Tensor) -> StreamState:
        """The fields of states, as views."""
        return StreamState._make(self.layout((states.shape[1] - 14) // 13).split(states))

    def update(self, states: Tensor, rows: Tensor, weights: Tensor | None, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Learn from logits, (K, T, C), and return what to subtract, (K, T, C); see `Rule`.

        With fewer than three classes nothing is subtracted: a shift and a label prior are then one number.
        """
        state = self.state(states)
        logits, weights, counted, rejected = taken(rows, weights)
        if rows.shape[-1] < FEWEST_CLASSES:
            tallies = state.tallies + torch.stack([counted, rejected, torch.zeros_like(counted)], -1).sum(1)
            return torch.cat([tallies, states[:, len(TALLIES) :]], 1), torch.zeros_like(rows)
        bias = bias - bias.mean()
        y = logits - (logits.mean(-1, keepdim=True) + bias)
        before, previous = _before(y, counted, state.previous)
        novelty, clipped = _limited(Moments.of(state.ever), y, before)
        old = (bias - state.shift)[:, None]
        drawn = weights * novelty.clamp(min=LEAST)
        log_prior = None
        if self.prior:
            likelihood = (novelty[..., None] * (y + old)).softmax(-1)
            state, log_prior, fresh = self._judged(state, likelihood, weights, counted)
            drawn = drawn * fresh
        scales = _learnt(torch.stack([state.ever, state.lately], 1), clipped, drawn, clipped + old, self.window)
        shift = self._shift(scales)
        offsets = shift[:, None] - log_prior if log_prior is not None else shift[:, None].expand_as(rows)
        changed = ((logits - offsets).argmax(-1) != logits.argmax(-1)) * counted
        tallies = state.tallies + torch.stack([counted, rejected, changed], -1).sum(1)
        learnt = torch.cat(
            [
                scales.flatten(1),
                previous,
                shift,
                state.sticky[:, None],
                state.last,
                state.labels.flatten(1),
                state.seen,
            ],
            1,
        )
        learnt = torch.where(counted.amax(1, keepdim=True) > 0, learnt, states[:, len(TALLIES) :])
        return torch.cat([tallies, learnt], 1), offsets

    def _judged(
        self, state: StreamState, likelihood: Tensor, weights: Tensor, counted: Tensor
    ) -> tuple[StreamState, Tensor, Tensor]:
        """Learn and use the label prior.

        Returns:
            The new state, the log prior R of each sample, (K, T, C), and how likely its label is a fresh draw, (K, T).
        """
        blocks = [(likelihood, weights, counted)]
        if not is_exporting():  # where T is a symbol: no loop over blocks of samples
            blocks = list(zip(*(torch.split(rows, BLOCK, 1) for rows in blocks[0]), strict=True))
        priors, fresh = [], []
        for chance, some_weights, some_counted in blocks:
            state, mix = _joined(state, chance, some_weights, some_counted, self.clean)
            chances = chance / (chance @ mix[..., None])
            if is_exporting():
                chain, weight, last, sticky = _one_by_one(chances, some_counted, mix, state, self.stay)
            else:
                chain, gain, last = _chain(chances, some_counted, mix, state.last, self.stay)
                weight, sticky = _competed(state.sticky, gain, some_counted)
            state = state._replace(sticky=sticky, last=last)
            priors.append((weight[..., None] * (chain - 1)).log1p().clamp(max=BOOST))
            fresh.append(1 - self.stay * weight)
        return (state, priors[0], fresh[0]) if len(priors) == 1 else (state, torch.cat(priors, 1), torch.cat(fresh, 1))

    def estimates(self, scales: Tensor) -> Estimates:
        """What each time scale, (K, 2, W), says of the shift by itself."""
        m = Moments.of(scales)
        classes = m.sum1.shape[-1]
        n, trust = m.weight.clamp(min=TINY), m.trust.clamp(min=TINY)
        lately = torch.minimum(n[:, 1], n[:, 1] ** 2 / m.squares[:, 1])
        samples = torch.stack([n[:, 0], lately], 1)
        mean, second, third = torch.split(scales[..., 1 : 1 + 3 * classes] / n[..., None], classes, -1)
        square = mean * mean
        spread = second - square
        variance = spread.sum(-1)
        third = torch.addcmul(third, mean, torch.add(square, spread, alpha=3), value=-1)
        gate = self.gate if self.gate is not None else GATE if classes < MANY else GATE_MANY
        visible = third.sum(-1) >= gate / math.sqrt(classes) * variance**1.5
        top = mean.argmax(-1, keepdim=True)
        width = spread.gather(-1, top)[..., 0].clamp(min=TINY)
        balanced = third.gather(-1, top)[..., 0] >= -math.sqrt(6) * samples.rsqrt() * width**1.5
        # Where a shift makes the model answer one class, that logit is saturated: skewed, but narrow.
        mixed = balanced | (width * (classes - 1) < WIDE * (variance - width).clamp(min=0))
        # What the predicted classes look like without a shift, if each has a peak of the same height. Clean data, if it
        # was measured, says how they are mixed and where their mean lies. Under a shift all embeddings shrink: that
        # mean is scaled by the height of the peak relative to that of the clean data, at most 1.
        share, peak, clean = m.predicted / trust[..., None], m.peak / trust, self.clean
        uneven = share - (1 / classes if clean is None else clean.on(share)[0])
        if clean is not None:
            peak = peak.clamp(min=0.0, max=clean.peak)
        height = peak * (classes / (classes - 1))
        expected = height[..., None] * uneven
        if clean is not None:
            expected = expected - (1 - peak / clean.peak)[..., None] * clean.on(share)[1]
        between = height * height * (1 - (share * share).sum(-1))
        one_sided = (uneven * uneven).sum(-1) * (classes / (classes - 1))  # from 0 to about 1
        # Classes deviate from this model of what they look like. As expected, that cancels; one-sided, it stays.
        noise = variance / (samples - 1).clamp(min=TINY) + (variance - between).clamp(min=0) * one_sided
        enough = (samples > FEWEST) & (variance >= FLAT)
        return Estimates(enough, visible, mixed, mean - expected, noise, variance)

    def _shift(self, scales: Tensor) -> Tensor:
        """The shift v, (K, C), from both time scales, (K, 2, W): the window's is shrunk towards that of all time."""
        own = self.estimates(scales)
        usable = own.enough & own.visible & own.mixed
        shift = torch.zeros_like(own.shift[:, 0])
        for scale in range(1 if self.window is None else 2):
            step = own.shift[:, scale] - shift
            factor = 1 - own.noise[:, scale] / (step * step).sum(-1).clamp(min=TINY)
            shift = torch.addcmul(shift, (factor.clamp(min=0) * usable[:, scale])[:, None], step)
        return shift

    def offset(self, states: Tensor) -> Tensor:
        """The shift, (K, C)."""
        return self.state(states).shift

    def standing(self, states: Tensor) -> Tensor:
        """The shift, less what the label prior adds to the next sample, (K, C)."""
        state = self.state(states)
        if not self.prior or state.shift.shape[1] < FEWEST_CLASSES:
            return state.shift
        chain = torch.where(state.seen[:, :1] > 0, state.last / state.mix(self.clean) - 1, 0.0)
        return state.shift - (self.stay * state.sticky[:, None] * chain).log1p().clamp(max=BOOST)

    def merged(self, one: Tensor, other: Tensor, layout: Layout) -> Tensor:
        """The states of both: moments over all time add up; the shift is derived from them anew."""
        states = layout.merged(one, other)
        state = self.state(states)
        state.shift.copy_(self._shift(torch.stack([state.ever, state.lately], 1)))
        return states


def _before(y: Tensor, counted: Tensor, stored: Tensor) -> tuple[Tensor, Tensor]:
    """The sample before each of y, (K, T, C), among those that count, and the last one, (K, C)."""
    count = y.shape[1]
    if count == 1:
        return stored[:, None], y[:, 0]  # which is not stored if it does not count
    numbers = torch.arange(1, count + 1, device=y.device)
    earlier = (numbers * counted)[:, None] * (numbers <= numbers[:, None])  # [t, k]: k if it counts and is not after t
    places = F.pad(earlier.amax(-1), (1, 0)).long()
    rows = torch.cat([stored[:, None], y], 1).gather(1, places[..., None].expand(-1, -1, y.shape[2]))
    return rows[:, :-1], rows[:, -1]


def _limited(ever: Moments, y: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """How new each sample is after the one before, (K, T), and the samples with outliers pulled in, (K, T, C)."""
    n, cold = ever.weight.clamp(min=TINY)[:, None], (ever.weight <= WARM)[:, None]
    mean = ever.sum1 / n
    power = ever.sum2.sum(-1, keepdim=True) / n  # not the variance: a frozen picture has none
    variance = (power - (mean * mean).sum(-1, keepdim=True)).clamp(min=FLAT)
    apart = y - before
    novelty = ((apart * apart).sum(-1) / (DUPLICATE * variance)).clamp(max=1.0).masked_fill(cold, 1.0)
    length = torch.linalg.vector_norm(y - mean[:, None], dim=-1).clamp(min=TINY)
    factor = (CLIP * power.sqrt() / length).clamp(max=1.0).masked_fill(cold, 1.0)
    return novelty, torch.lerp(mean[:, None], y, factor[..., None])


def _joined(
    state: StreamState, likelihood: Tensor, weights: Tensor, counted: Tensor, clean: CleanLogits | None
) -> tuple[StreamState, Tensor]:
    """Let samples join the mix of labels that they are judged by; the new mix, (K, C)."""
    mix = state.mix(clean)
    number = counted.cumsum(1)
    total = number[:, -1:]
    keep = (F.pad(total, (1, 0)) / -RECENT).exp()
    joining = torch.stack([weights, weights * ((number - total) / RECENT).exp()], 1)
    new = (joining / (likelihood @ mix[..., None]).transpose(1, 2)) @ likelihood * mix[:, None]
    first = state.seen[:, :1] <= 0
    state = state._replace(
        labels=torch.addcmul(new, state.labels, keep[..., None]),
        seen=torch.addcmul(joining.sum(-1), state.seen, keep),
    )
    mix = state.mix(clean)
    return state._replace(last=torch.where(first, mix, state.last)), mix


def _chain(chances: Tensor, counted: Tensor, mix: Tensor, last: Tensor, stay: float) -> tuple[Tensor, Tensor, Tensor]:
    """Follow the sticky chain through samples without a loop over them.

    Each sample continues the chain or starts it again, so its evidence solves a renewal equation, one triangular system
    for each part of the samples.

    Args:
        chances: Likelihoods of the classes relative to that of the mix, (K, T, C).
        counted: Which samples count, (K, T).
        mix: The mix of labels, (K, C).
        last: Distribution of the last label under the chain, (K, C).
        stay: Probability that the chain repeats its label.

    Returns:
        What the chain expects of each sample relative to the mix, (K, T, C); how much better than the mix it explains
        the sample, (K, T); and the distribution of the last label, (K, C).
    """
    start, count = (last / mix)[:, None], chances.shape[1]
    if count == 1:
        chain = start * stay + (1 - stay)
        after = chances * chain * mix[:, None]
        gain = after.sum(-1)
        return chain, gain, after[:, 0] / gain
    size, floor = PART[chances.dtype]
    size = min(size, count)
    parts = -(-count // size)
    logs = (stay * chances).clamp(min=floor).log() * counted[..., None]
    again = counted * ((1 - stay) / stay)
    if count % size:
        more = parts * size - count
        logs, again = F.pad(logs, (0, 0, 0, more)), F.pad(again, (0, more))
    logs, again = logs.view(-1, parts, size, logs.shape[-1]), again.view(-1, parts, size, 1)
    sums = logs.cumsum(2)
    until, since = sums.exp(), (logs - sums).exp() * again
    kernel = (until @ (since * mix[:, None, None]).transpose(2, 3)).tril()
    system = F.pad(kernel[..., 1:], (0, 1)).neg()  # its diagonal counts as 1
    starts, evidence, before = [], [], []
    for part in range(parts):
        carried = until[:, part] @ (start * mix[:, None]).transpose(1, 2) + kernel[:, part, :, :1]
        evidence.append(torch.linalg.solve_triangular(system[:, part], carried, upper=False, unitriangular=True))
        before.append(F.pad(evidence[-1][:, :-1], (0, 0, 1, 0), value=1.0))
        starts.append(start)
        start = until[:, part, -1:] * (before[-1].transpose(1, 2) @ since[:, part] + start) / evidence[-1][:, -1:]
    first, explained, earlier = torch.stack(starts, 1), torch.stack(evidence, 1), torch.stack(before, 1)
    ratios = until * ((earlier * since).cumsum(2) + first)
    chain = torch.cat([first, ratios[:, :, :-1]], 2) * (stay / earlier) + (1 - stay)
    gain = explained / earlier
    return chain.view(len(mix), -1, mix.shape[1])[:, :count], gain.view(len(mix), -1)[:, :count], start[:, 0] * mix


def _competed(sticky: Tensor, gain: Tensor, counted: Tensor) -> tuple[Tensor, Tensor]:
    """The weight of the chain at each sample, (K, T), and afterwards, (K,): products of 2 x 2 matrices, by a scan."""
    if gain.shape[1] == 1:
        better = sticky * gain[:, 0]
        return sticky[:, None], better / (better + (1 - sticky)) * (1 - SHARE) + SHARE * START
    won = counted * (SHARE * START)
    lost = counted * gain * (SHARE - SHARE * START)
    steps = torch.stack([gain - lost, won, lost, 1 - won], -1).view(*gain.shape, 2, 2)
    distance = 1
    while distance < gain.shape[1]:
        steps = torch.cat([steps[:, :distance], steps[:, distance:] @ steps[:, :-distance]], 1)
        distance *= 2
        if distance % 4 == 0:  # so that products stay in range
            steps = steps / steps.amax((-1, -2), keepdim=True)
    odds = (steps @ torch.stack([sticky, 1 - sticky], -1)[:, None, :, None])[..., 0]
    weights = torch.cat([sticky[:, None], odds[..., 0] / odds.sum(-1)], 1)
    return weights[:, :-1], weights[:, -1]


def _one_by_one(
    chances: Tensor, counted: Tensor, mix: Tensor, state: StreamState, stay: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`_chain` and `_competed` sample by sample, for graphs whose number of samples is a symbol.

    Returns:
        What the chain expects of each sample relative to the mix, (K, T, C); its weight at each sample, (K, T); the
        distribution of the last label, (K, C); and the weight afterwards, (K,).
    """
    from torch._higher_order_ops.scan import scan  # which imports the compiler

    def step(carried: list[Tensor], sample: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        (last, sticky), (chances, counted) = carried, (part[:, None] for part in sample)
        chain, gain, after = _chain(chances, counted, mix, last, stay)
        weight, next_sticky = _competed(sticky, gain, counted)
        learnt = [torch.where(counted > 0, after, last), torch.where(counted[:, 0] > 0, next_sticky, sticky)]
        return learnt, [chain[:, 0], weight[:, 0].clone()]

    start = [state.last.clone(), state.sticky.clone()]
    (last, sticky), (chain, weight) = scan(step, start, [chances.transpose(0, 1), counted.transpose(0, 1)])
    return chain.transpose(0, 1), weight.transpose(0, 1), last, sticky


def _learnt(scales: Tensor, y: Tensor, weights: Tensor, centred: Tensor, window: float | None) -> Tensor:
    """Both time scales, (K, 2, W), after more samples, (K, T, C), of these weights, (K, T).

    Responsibilities age: older shifts made them. So each counts in proportion to the weight of all samples up to it.
    """
    responsible = centred.softmax(-1)
    square, one, peak = y * y, torch.ones_like(weights)[..., None], (responsible * centred).sum(-1, keepdim=True)
    added = weights[:, None] @ torch.cat([one, y, square, square * y, weights[..., None], one, peak, responsible], -1)
    sizes = [1 + 3 * y.shape[-1], 1, 2 + y.shape[-1]]
    (moments, squares, beliefs), old = (
        torch.split(added, sizes, -1),
        torch.split(scales, [sizes[0], sizes[1] + sizes[2]], -1),
    )
    keep = (F.pad(moments[..., :1], (0, 0, 1, 0)) / -(window or math.inf)).exp()
    moments = torch.addcmul(moments, old[0], keep)
    aged = torch.cat([squares.expand(-1, 2, -1), beliefs * moments[..., :1]], -1)
    return torch.cat([moments, torch.addcmul(aged, old[1], keep * keep)], -1)

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

from neotta.neo.codec import Field
from neotta.neo.state import LARGEST, TALLIES, Layout, Rule, taken

GATE, GATE_MANY, MANY = 0.6, 0.5, 500  # least skewness of the logits: about three visible classes; from 500 classes on
START, SHARE = 0.1, 1 / 256  # prior weight of the sticky chain, and how much of it always remains
SMOOTH = 3.0  # pseudo-samples spread over all classes
FADING = math.exp(-1 / 16)  # what the recent mix of labels keeps at each sample
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
    """The fields of the states of K streams of logits; see `Moments` for the `scales`.

    Distributions of labels are relative to equal shares: their mean over classes is 1.
    """

    tallies: Tensor  # see `Layout`, (K, 3)
    scales: Tensor  # moments over all time and over the window, (K, 2, 3 + 4C)
    points: Tensor  # the last sample, and the mean over all time, (K, 2, C)
    spreads: Tensor  # total variance over all time, and the mean square of samples, (K, 2)
    shift: Tensor  # the vector v that is subtracted, (K, C)
    sticky: Tensor  # weight w of the sticky chain, (K,)
    last: Tensor  # distribution of the last label under the chain, (K, C), once a sample was seen
    mix: Tensor  # distribution of the labels so far, (K, C)
    labels: Tensor  # number of samples, and expected counts of their labels, over all time and lately, (K, 2, 1 + C)


class Moments(NamedTuple):
    """Weighted sums over the samples of a time scale, (...) or (..., C)."""

    sum1: Tensor  # sum of the samples
    sum2: Tensor  # sum of their squares
    sum3: Tensor  # sum of their cubes
    weight: Tensor  # sum of the weights
    trust: Tensor  # sum of the weights in `peak` and `uneven`
    peak: Tensor  # sum of the expected logits of the predicted classes
    uneven: Tensor  # expected counts of the predicted classes, beyond equal shares

    @classmethod
    def of(cls, scales: Tensor) -> Moments:
        """Views of the columns of time scales, (..., 3 + 4C)."""
        classes = scales.shape[-1] // 4
        sum1, sum2, sum3, weight, trust, peak, uneven = torch.split(
            scales, [classes, classes, classes, 1, 1, 1, classes], -1
        )
        return cls(sum1, sum2, sum3, weight[..., 0], trust[..., 0], peak[..., 0], uneven)


class Estimates(NamedTuple):
    """What the time scales of K streams say of the shift, each by itself."""

    shift: Tensor  # the shift, (K, 2, C)
    noise: Tensor  # squared length of the error to expect of it, (K, 2); infinite if too few samples differ
    skewed: Tensor  # how far the skewness of the logits is above the gate, (K, 2)
    balanced: Tensor  # how far the raised logit is from that of a majority, (K, 2)
    mean: Tensor  # the mean of the samples, (K, 2, C)
    spreads: Tensor  # their total variance and their mean square, (K, 2, 2)

    @property
    def variance(self) -> Tensor:
        """Total variance of the samples, (K, 2)."""
        return self.spreads[..., 0]

    @property
    def enough(self) -> Tensor:
        """Whether there are enough samples that differ, (K, 2)."""
        return self.noise.isfinite()

    @property
    def visible(self) -> Tensor:
        """Whether enough classes are visible to tell shift from label, (K, 2)."""
        return self.skewed >= 0

    @property
    def mixed(self) -> Tensor:
        """Whether no class has more than half of the samples, (K, 2)."""
        return self.balanced >= 0


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
        """See `StreamState`, whose scales are two fields here, as only one of them can be merged."""
        scale, vector = (3 + 4 * size,), (size,)
        return {
            "ever": Field(scale),
            "lately": Field(scale, "keep"),
            "points": Field((2, size), "keep"),
            "spreads": Field((2,), "keep"),
            "shift": Field(vector, "keep"),
            "sticky": Field((), "keep", START, 0.0, 1.0),
            "last": Field(vector, "keep", least=0.0),
            "mix": Field(vector, "keep", 1.0, 0.0),
            "labels": Field((2, 1 + size), "keep", least=0.0),
        }

    def state(self, states: Tensor) -> StreamState:
        """The fields of states, as views."""
        tallies, ever, _, *others = self.layout((states.shape[1] - 14) // 15).split(states)
        start, width = tallies.shape[1], ever.shape[1]
        return StreamState(tallies, states[:, start : start + 2 * width].view(-1, 2, width), *others)

    def update(self, states: Tensor, rows: Tensor, weights: Tensor | None, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Learn from logits, (K, T, C), and return what to subtract, (K, T, C); see `Rule`.

        With fewer than three classes nothing is subtracted: a shift and a label prior are then one number.
        """
        if rows.shape[-1] < FEWEST_CLASSES:
            _, _, counted, rejected = taken(rows.to(states.dtype), weights)
            new = torch.stack([counted, rejected, torch.zeros_like(counted)], -1).sum(1)
            return torch.cat([states[:, :3] + new, states[:, 3:]], 1), torch.zeros_like(rows)
        if rows.shape[1] == 1 and weights is None and not is_exporting():
            return self._update_one(states, rows[:, 0], bias)
        state = self.state(states)
        logits, weights, counted, rejected = taken(rows.to(states.dtype), weights)
        free, rest = logits - state.shift[:, None], (bias - state.shift)[:, None]
        y = free - rest
        y = y - y.mean(-1, keepdim=True)
        before, previous = _before(y, counted, state.points[:, 0])
        novelty, clipped = _limited(state, y, torch.stack([before, state.points[:, None, 1].expand_as(y)], 2))
        drawn = weights * novelty.clamp(min=LEAST)
        log_prior = None
        if self.prior:
            likelihood = (novelty[..., None] * free).softmax(-1)
            judged = self._judged_one_by_one if is_exporting() else self._judged
            state, chain, sticky = judged(state, likelihood, weights, counted)
            log_prior = (sticky[..., None] * (chain - 1)).log1p().clamp(max=BOOST)
            drawn = torch.addcmul(drawn, drawn, sticky, value=-self.stay)
        learnt = self._learnt(state, clipped, drawn, clipped + rest, previous)
        after = torch.where(counted.amax(1, keepdim=True) > 0, learnt, states)
        shift = self.state(after).shift[:, None]
        offsets = shift.expand_as(rows) if log_prior is None else shift - log_prior
        changed = ((logits - offsets).argmax(-1) != logits.argmax(-1)) * counted
        after[:, : len(TALLIES)].add_(torch.stack([counted, rejected, changed], -1).sum(1))
        return after, offsets

    def _update_one(self, states: Tensor, rows: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """`update` for one sample of each stream, (K, C), that weighs 1: without sums over samples and masks."""
        state, classes = self.state(states), rows.shape[1]
        usable = (rows.abs() <= LARGEST).all(-1, keepdim=True)
        free, rest = rows - state.shift, bias - state.shift
        y = free - rest
        y = y - y.mean(-1, keepdim=True)
        novelty, clipped = _limited(state, y[:, None], state.points[:, None])
        drawn, log_prior = novelty.clamp(min=LEAST), None
        if self.prior:
            sticky = state.sticky[:, None]
            drawn = torch.addcmul(drawn, drawn, sticky, value=-self.stay)
            likelihood = (novelty * free).softmax(-1)
            smooth = self._smooth(state.labels)
            mix = state.mix if self.clean is None else self._mixed(state.labels, smooth)
            posterior = mix * likelihood
            counts = F.pad(posterior / posterior.mean(-1, keepdim=True), (1, 0), value=1.0)
            labels = state.labels + counts[:, None]
            labels[:, 1].sub_(state.labels[:, 1], alpha=1 - FADING)
            mix = torch.where(usable, self._mixed(labels, smooth), mix)
            chain = torch.lerp(mix, torch.where(state.labels[:, 0, :1] > 0, state.last, mix), self.stay)
            expected = torch.lerp(mix, chain, sticky)
            log_prior = (expected / mix).log().clamp(max=BOOST)
            last = chain * likelihood
            by_chain, by_both = last.mean(-1, keepdim=True), torch.linalg.vecdot(expected, likelihood)[:, None]
            sticky = torch.addcdiv(
                torch.full_like(sticky, SHARE * START), sticky * by_chain, by_both, value=classes * (1 - SHARE)
            )
            state = state._replace(sticky=sticky[:, 0], last=last / by_chain, mix=mix, labels=labels)
        after = torch.where(usable, self._learnt(state, clipped, drawn, clipped + rest[:, None], y), states)
        shift = self.state(after).shift
        offsets = shift if log_prior is None else shift - log_prior
        changed = ((rows - offsets).argmax(-1, keepdim=True) != rows.argmax(-1, keepdim=True)) & usable
        after[:, : len(TALLIES)].add_(torch.cat([usable, ~usable, changed], 1))
        return after, offsets[:, None]

    def _learnt(self, state: StreamState, y: Tensor, weights: Tensor, centred: Tensor, previous: Tensor) -> Tensor:
        """States after more samples, but for the tallies, (K, width).

        Args:
            state: The states so far; what the label prior learns is in them.
            y: The samples, (K, T, C), outliers pulled in.
            weights: How many label draws each counts as, (K, T).
            centred: The samples with their bias and without the shift, (K, T, C).
            previous: The last sample as it was, (K, C).
        """
        streams, count, classes = y.shape
        drawn = weights if count == 1 else weights.sum(1, keepdim=True)
        # What each time scale keeps while labels are drawn: over all time everything.
        kept = F.pad(math.exp(-1 / (self.window or math.inf)) ** drawn, (1, 0), value=1.0)
        one, square = kept[:, None, :1].expand(-1, count, 1), y * y
        uneven = centred.softmax(-1) - 1 / classes
        peak = torch.linalg.vecdot(uneven, centred)[..., None]
        samples, weights = torch.cat([y, square, square * y, one, one, peak, uneven], -1), weights[:, None]
        added = samples * weights if count == 1 else weights @ samples
        sizes = [1 + 3 * classes, 2 + classes]
        (moments, beliefs), old = torch.split(added, sizes, -1), torch.split(state.scales, sizes, -1)
        moments = torch.addcmul(moments, old[0], kept[..., None])
        # Responsibilities age: older shifts made them. So each counts like the weight of all samples up to it.
        beliefs = torch.addcmul(beliefs * moments[..., -1:], old[1], (kept * kept)[..., None])
        scales = torch.cat([moments, beliefs], -1)
        own = self.estimates(scales)
        known = [previous, own.mean[:, 0], own.spreads[:, 0], self._shift(own)]
        prior = [state.sticky[:, None], state.last, state.mix, state.labels.view(streams, -1)]
        return torch.cat([state.tallies, scales.view(streams, -1), *known, *prior], 1)

    def _smooth(self, like: Tensor) -> float | Tensor:
        """Pseudo-samples of the mix of labels: all are equally likely, or as likely as in clean data."""
        if self.clean is None:
            return SMOOTH
        prior = self.clean.on(like)[0]
        return F.pad(SMOOTH * len(prior) * prior, (1, 0), value=SMOOTH)

    def _mixed(self, labels: Tensor, smooth: float | Tensor) -> Tensor:
        """The mix of labels so far, (K, C)."""
        labels = labels + smooth
        return (labels[..., 1:] / labels[..., :1]).mean(1)

    def _judged(
        self, state: StreamState, likelihood: Tensor, weights: Tensor, counted: Tensor
    ) -> tuple[StreamState, Tensor, Tensor]:
        """Learn the label prior.

        Returns:
            The new state, what the sticky chain expects of each sample relative to the mix, (K, T, C), and the weight
            of the chain, (K, T).
        """
        chains, sticky, smooth = [], [], self._smooth(likelihood)
        blocks = torch.split(likelihood, BLOCK, 1), torch.split(weights, BLOCK, 1), torch.split(counted, BLOCK, 1)
        for chance, some_weights, some_counted in zip(*blocks, strict=True):
            state = self._told(state, chance, some_weights, some_counted, smooth)
            chances = chance / (chance @ (state.mix / chance.shape[-1])[..., None])
            chain, gain, last = _chain(chances, some_counted, state.mix, state.last, self.stay)
            weight, after = _competed(state.sticky, gain, some_counted)
            state = state._replace(sticky=after, last=last)
            chains.append(chain)
            sticky.append(weight)
        return (
            (state, chains[0], sticky[0]) if len(chains) == 1 else (state, torch.cat(chains, 1), torch.cat(sticky, 1))
        )

    def _judged_one_by_one(
        self, state: StreamState, likelihood: Tensor, weights: Tensor, counted: Tensor
    ) -> tuple[StreamState, Tensor, Tensor]:
        """`_judged` for graphs whose number of samples is a symbol: by two scans, over blocks and over samples."""
        from torch._higher_order_ops.scan import scan  # which imports the compiler

        numbers = torch.arange(likelihood.shape[1], device=likelihood.device)
        # The last block is empty: a graph would make a constant of a number of blocks that may be 1.
        blocks = torch.arange((likelihood.shape[1] + BLOCK - 1) // BLOCK + 1, device=likelihood.device)
        places = blocks[:, None] * BLOCK + torch.arange(BLOCK, device=likelihood.device)
        within = (places < likelihood.shape[1]).to(counted.dtype)
        smooth = self._smooth(likelihood)  # the body of a scan cannot make tensors of numbers
        places = places.clamp(max=likelihood.shape[1] - 1)

        def tell(carried: list[Tensor], block: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
            (labels, mix, last), (chance, some_weights, some_counted) = carried, block
            before = state._replace(labels=labels, mix=mix, last=last)
            told = self._told(before, chance, some_weights, some_counted, smooth)
            return [told.labels, told.mix, told.last], [told.mix.clone()]

        start = [part.clone(memory_format=torch.contiguous_format) for part in (state.labels, state.mix, state.last)]
        in_blocks = [likelihood[:, places], weights[:, places] * within, counted[:, places] * within]
        (labels, mix, last), (mixes,) = scan(tell, start, [part.transpose(0, 1) for part in in_blocks])

        def step(carried: list[Tensor], sample: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
            last, sticky = carried
            mix, chance, counted = sample[0], sample[1][:, None], sample[2][:, None]
            chances = chance / (chance @ (mix / chance.shape[-1])[..., None])
            chain, gain, after = _chain(chances, counted, mix, last, self.stay)
            weight, next_sticky = _competed(sticky, gain, counted)
            learnt = [torch.where(counted > 0, after, last), torch.where(counted[:, 0] > 0, next_sticky, sticky)]
            return learnt, [chain[:, 0], weight[:, 0].clone()]

        samples = [mixes[numbers // BLOCK], likelihood.transpose(0, 1), counted.transpose(0, 1)]
        (last, sticky), (chain, weight) = scan(step, [last, state.sticky.clone()], samples)
        state = state._replace(labels=labels, mix=mix, last=last, sticky=sticky)
        return state, chain.transpose(0, 1), weight.transpose(0, 1)

    def _told(
        self, state: StreamState, likelihood: Tensor, weights: Tensor, counted: Tensor, smooth: float | Tensor
    ) -> StreamState:
        """Let samples join the mix of labels that they are judged by."""
        mix = state.mix if self.clean is None else self._mixed(state.labels, smooth)
        number = counted.cumsum(1)
        total = number[:, -1:]
        keep = F.pad(FADING**total, (1, 0), value=1.0)
        joining = torch.stack([weights, weights * FADING ** (total - number)], 1)
        evidence = (likelihood @ (mix / mix.shape[-1])[..., None]).transpose(1, 2)
        counts = (joining / evidence) @ likelihood * mix[:, None]
        counts = torch.cat([joining.sum(-1, keepdim=True), counts], -1)
        labels = torch.addcmul(counts, state.labels, keep[..., None])
        mix = self._mixed(labels, smooth)
        last = torch.where(state.labels[:, 0, :1] > 0, state.last, mix)
        return state._replace(labels=labels, mix=mix, last=last)

    def estimates(self, scales: Tensor) -> Estimates:
        """What each time scale, (K, 2, W), says of the shift by itself."""
        classes = scales.shape[-1] // 4
        sums, weights, beliefs = torch.split(scales, [3 * classes, 2, 1 + classes], -1)
        n, trust = torch.split(weights.clamp(min=TINY), 1, -1)
        mean, second, third = torch.split(sums / n, classes, -1)
        square = mean * mean
        spread = second - square
        third = torch.addcmul(third, mean, torch.add(square, spread, alpha=3), value=-1)
        central = torch.stack([spread, second, third], -2)
        top = mean.argmax(-1)[..., None, None].expand(*n.shape[:-1], 3, 1)
        # Each of the sum over classes, and of the logit that the mean raises most.
        central = torch.cat([central.sum(-1, keepdim=True), central.gather(-1, top)], -1)
        widths = F.threshold(central[..., 0, :], FLAT, math.inf)
        powers, (variance, width) = widths**1.5, widths.unbind(-1)
        gate = self.gate if self.gate is not None else GATE if classes < MANY else GATE_MANY
        skewed = torch.sub(central[..., 2, 0], powers[..., 0], alpha=gate / math.sqrt(classes))
        n = n[..., 0]
        even = torch.addcmul(central[..., 2, 1], n.rsqrt(), powers[..., 1], value=math.sqrt(6))
        # Where a shift makes the model answer one class, that logit is saturated: skewed, but narrow.
        narrow = torch.sub(variance, width, alpha=1 + (classes - 1) / WIDE)
        # What the predicted classes look like without a shift, if each has a peak of the same height. Clean data, if it
        # was measured, says how they are mixed and where their mean lies. Under a shift all embeddings shrink: that
        # mean is scaled by the height of the peak relative to that of the clean data, at most 1.
        peak, uneven = torch.split(beliefs / trust, [1, classes], -1)
        one_sided = beyond = torch.linalg.vecdot(uneven, uneven)
        least = mean
        if self.clean is not None:
            prior, free = self.clean.on(mean)
            uneven = uneven - (prior - 1 / classes)
            peak = peak.clamp(min=0.0, max=self.clean.peak)
            one_sided = torch.linalg.vecdot(uneven, uneven)
            least = mean + (1 - peak / self.clean.peak) * free
        scale, height = classes / (classes - 1), (peak * peak)[..., 0]
        shift = torch.addcmul(least, peak, uneven, value=-scale)
        between = torch.addcmul(height, height, beyond, value=-scale)
        # Classes deviate from this model of what they look like. As expected, that cancels; one-sided, it stays.
        misfit = torch.sub(variance, between, alpha=scale).clamp(min=0)
        chance = variance / F.threshold(n - 1, FEWEST - 1, 0.0)
        noise = torch.addcmul(chance, misfit, one_sided, value=scale)
        return Estimates(shift, noise, skewed, torch.maximum(even, narrow), mean, central[..., :2, 0])

    def _shift(self, own: Estimates) -> Tensor:
        """The shift v, (K, C), from both time scales: the window's is shrunk towards that of all time."""
        noise = torch.where(torch.minimum(own.skewed, own.balanced) >= 0, own.noise, math.inf)
        shift, step = own.shift[:, 0], own.shift[:, 0]
        for scale in range(1 if self.window is None else 2):
            if scale == 1:
                shift, step = own.shift[:, 1], own.shift[:, 1] - shift
            doubt = (noise[:, scale] / torch.linalg.vecdot(step, step)).clamp(max=1.0)
            shift = torch.addcmul(shift, step, doubt[:, None], value=-1)
        return shift

    def offset(self, states: Tensor) -> Tensor:
        """The shift, (K, C)."""
        return self.state(states).shift

    def standing(self, states: Tensor) -> Tensor:
        """The shift, less what the label prior adds to the next sample, (K, C)."""
        state = self.state(states)
        if not self.prior or state.shift.shape[1] < FEWEST_CLASSES:
            return state.shift
        chain = torch.where(state.labels[:, 0, :1] > 0, state.last / state.mix - 1, 0.0)
        return state.shift - (self.stay * state.sticky[:, None] * chain).log1p().clamp(max=BOOST)

    def merged(self, one: Tensor, other: Tensor, layout: Layout) -> Tensor:
        """The states of both: moments over all time add up; what follows from them is derived anew."""
        states = layout.merged(one, other)
        state = self.state(states)
        own = self.estimates(state.scales)
        state.shift.copy_(self._shift(own))
        state.points[:, 1].copy_(own.mean[:, 0])
        state.spreads.copy_(own.spreads[:, 0])
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


def _limited(state: StreamState, y: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """How new samples, (K, T, C), are after the ones before, (K, T), and the same with outliers pulled in, (K, T, C).

    The points are the sample before each and the mean over all time, (K, T, 2, C).
    """
    cold = state.scales[:, 0, 3 * y.shape[-1]] <= WARM  # the weight, as in `Moments`
    away = y[:, :, None] - points
    far = torch.linalg.vecdot(away, away) / state.spreads.clamp(min=FLAT)[:, None]
    far = far.masked_fill(cold[:, None, None], 1.0)
    novelty = (far[..., 0] / DUPLICATE).clamp(max=1.0)
    factor = far[..., 1:].clamp(min=CLIP * CLIP).rsqrt()
    return novelty, torch.addcmul(points[:, :, 1], away[:, :, 1], factor, value=CLIP)


def _chain(chances: Tensor, counted: Tensor, mix: Tensor, last: Tensor, stay: float) -> tuple[Tensor, Tensor, Tensor]:
    """Follow the sticky chain through samples without a loop over them.

    Each sample continues the chain or starts it again, so its evidence solves a renewal equation, one triangular system
    for each part of the samples.

    Args:
        chances: Likelihoods of the classes relative to that of the mix, (K, T, C).
        counted: Which samples count, (K, T).
        mix: The mix of labels, (K, C), relative to equal shares.
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
        gain = after.mean(-1)
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
    shares = mix[:, None] / mix.shape[1]
    kernel = (until @ (since * shares[:, None]).transpose(2, 3)).tril()
    system = F.pad(kernel[..., 1:], (0, 1)).neg()  # its diagonal counts as 1
    starts, evidence, before = [], [], []
    for part in range(parts):
        carried = until[:, part] @ (start * shares).transpose(1, 2) + kernel[:, part, :, :1]
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

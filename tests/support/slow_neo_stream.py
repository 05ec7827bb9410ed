"""NEO-Stream once more, from its formulas: one number at a time, to check the fast one against."""

from __future__ import annotations

import math


class SlowStream:
    """Shift and label prior of one stream; arguments as of `StreamRule`."""

    def __init__(self, bias, gate=None, stay=0.98, window=32.0, prior=True):
        self.size = len(bias)
        self.bias = [b - sum(bias) / self.size for b in bias]
        self.gate = gate if gate is not None else 0.6 if self.size < 500 else 0.5
        self.stay, self.prior = stay, prior
        self.shift = [0.0] * self.size
        self.scales = [_Scale(self.size, length) for length in (math.inf, window) if length is not None]
        self.sticky, self.last = 0.1, None
        self.counts, self.seen = [[0.0] * self.size, [0.0] * self.size], [0.0, 0.0]
        self.previous = None

    def step(self, rows, weights):
        """Answers to a batch, a list of rows."""
        centred = [[z - sum(row) / self.size - b for z, b in zip(row, self.bias, strict=True)] for row in rows]
        limited = []
        for y, weight in zip(centred, weights, strict=True):
            limited.append(self._limited(y))
            self.previous = y if weight > 0 else self.previous
        boosts, fresh = [[0.0] * self.size for _ in rows], [1.0] * len(rows)
        if self.prior:
            likelihoods = [
                softmax([novelty * z for z in self._free(y)]) for y, (novelty, _) in zip(centred, limited, strict=True)
            ]
            boosts, fresh = [], []
            for at in range(0, len(rows), 64):
                self._judge(likelihoods[at : at + 64], weights[at : at + 64], boosts, fresh)
        learnt = [
            (near, weight * new * max(novelty, 0.02), self._free(near))
            for (novelty, near), weight, new in zip(limited, weights, fresh, strict=True)
        ]
        for scale in self.scales:
            scale.add(learnt)
        self.shift = [0.0] * self.size
        for scale in self.scales:
            self.shift = [v + d for v, d in zip(self.shift, scale.towards(self.shift, self.gate), strict=True)]
        return self._answers(rows, boosts)

    def answer(self, rows):
        """Answers to a batch that is not learnt from."""
        boost = self._boost(self._mix())[0] if self.prior and self.last else [0.0] * self.size
        return self._answers(rows, [boost] * len(rows))

    def _answers(self, rows, boosts):
        return [
            [z - v + r for z, v, r in zip(row, self.shift, boost, strict=True)]
            for row, boost in zip(rows, boosts, strict=True)
        ]

    def _free(self, y):
        """Logits without the shift."""
        return [value + b - v for value, b, v in zip(y, self.bias, self.shift, strict=True)]

    def _limited(self, y):
        """How new a sample is, and the sample pulled in if it is far away."""
        ever = self.scales[0]
        if ever.weight <= 4:
            return 1.0, y
        mean, variance = ever.mean(), max(sum(ever.central(2)), 1e-9)
        power = sum(ever.sums[2]) / ever.weight
        step = sum((a - b) ** 2 for a, b in zip(y, self.previous, strict=True))
        away = math.dist(y, mean)
        pull = min(1.0, 3 * math.sqrt(power) / max(away, 1e-12))
        return min(1.0, step / (variance / 2)), [m + (value - m) * pull for value, m in zip(y, mean, strict=True)]

    def _mix(self):
        """The mix of labels so far."""
        mixes = [
            [(n + 3 / self.size) / (t + 3) for n in counts] for counts, t in zip(self.counts, self.seen, strict=True)
        ]
        return [(a + b) / 2 for a, b in zip(*mixes, strict=True)]

    def _boost(self, mix):
        """What the label prior adds to the logits of the next sample, and what the chain expects of it."""
        chain = [(1 - self.stay) * p + self.stay * a for p, a in zip(mix, self.last, strict=True)]
        w = self.sticky
        return [min(1.0, math.log(1 - w + w * s / p)) for s, p in zip(chain, mix, strict=True)], chain

    def _judge(self, likelihoods, weights, boosts, fresh):
        """Let samples join the mix of labels, and follow the chain through them."""
        mix = self._mix()
        for likelihood, weight in zip(likelihoods, weights, strict=True):
            if weight > 0:
                by_mix = sum(p * g for p, g in zip(mix, likelihood, strict=True))
                for which, keep in enumerate((1.0, math.exp(-1 / 16))):
                    self.seen[which] = self.seen[which] * keep + weight
                    self.counts[which] = [
                        n * keep + weight * p * g / by_mix
                        for n, p, g in zip(self.counts[which], mix, likelihood, strict=True)
                    ]
        mix = self._mix()
        self.last = self.last or mix
        for likelihood, weight in zip(likelihoods, weights, strict=True):
            boost, chain = self._boost(mix)
            boosts.append(boost)
            fresh.append(1 - self.sticky * self.stay)
            if weight > 0:
                by_chain = sum(s * g for s, g in zip(chain, likelihood, strict=True))
                by_mix = sum(p * g for p, g in zip(mix, likelihood, strict=True))
                self.last = [s * g / by_chain for s, g in zip(chain, likelihood, strict=True)]
                after = self.sticky * by_chain / (self.sticky * by_chain + (1 - self.sticky) * by_mix)
                self.sticky = (1 - 1 / 256) * after + 0.1 / 256


class _Scale:
    """Sums over one time scale."""

    def __init__(self, size, length):
        self.size, self.length = size, length
        self.weight = self.peak = self.trust = 0.0
        self.sums = {power: [0.0] * size for power in (1, 2, 3)}
        self.predicted = [0.0] * size

    def add(self, samples):
        """Add a batch: centred logits, weight, and logits without the old shift of each sample."""
        total = sum(weight for _, weight, _ in samples)
        keep = math.exp(-total / self.length)
        before = self.weight * keep
        self.weight = before + total
        for power, sums in self.sums.items():
            self.sums[power] = [s * keep + sum(w * y[k] ** power for y, w, _ in samples) for k, s in enumerate(sums)]
        keep *= before / self.weight if self.weight > 0 else 0.0
        shares = [(weight, softmax(free), free) for _, weight, free in samples]
        self.predicted = [p * keep + sum(w * q[k] for w, q, _ in shares) for k, p in enumerate(self.predicted)]
        self.peak = self.peak * keep + sum(
            w * sum(a * b for a, b in zip(q, free, strict=True)) for w, q, free in shares
        )
        self.trust = self.trust * keep + total

    def mean(self):
        """The mean."""
        return [s / self.weight for s in self.sums[1]]

    def central(self, power):
        """The second or third central moments."""
        n, found = self.weight, []
        for m, second, third in zip(self.mean(), self.sums[2], self.sums[3], strict=True):
            found.append(second / n - m * m if power == 2 else third / n - 3 * m * second / n + 2 * m**3)
        return found

    def towards(self, shift, gate):
        """The step from a shift to this scale's own, shrunk by its noise."""
        nothing, c = [0.0] * self.size, self.size
        if self.weight <= 0:
            return nothing
        variance, skew = sum(self.central(2)), sum(self.central(3))
        if self.weight <= 1.5 or variance < 1e-9 or math.sqrt(c) * skew < gate * variance**1.5:
            return nothing
        mean = self.mean()
        top = mean.index(max(mean))
        spread = max(self.central(2)[top], 1e-12)
        wide = spread >= 0.8 * max(variance - spread, 0.0) / (c - 1)
        if wide and self.central(3)[top] < -math.sqrt(6 / self.weight) * spread**1.5:
            return nothing
        height = self.peak / self.trust / (1 - 1 / c)
        share = [p / self.trust for p in self.predicted]
        step = [m - height * (p - 1 / c) - v for m, p, v in zip(self.mean(), share, shift, strict=True)]
        even = sum(p * p for p in share)
        misfit = max(variance - height**2 * (1 - even), 0.0) * max(even - 1 / c, 0.0) * c / (c - 1)
        noise = variance / (self.weight - 1) + misfit
        factor = max(0.0, 1 - noise / max(sum(d * d for d in step), 1e-12))
        return [factor * d for d in step]


def softmax(logits):
    """Probabilities."""
    powers = [math.exp(z - max(logits)) for z in logits]
    return [p / sum(powers) for p in powers]

"""Candidates for NEO-Stream that were measured and not taken; docs/ideas/streams.md has the table.

Each is a method by name: `neotta run --methods none,py:docs/results/candidates.py:RiseAndFall`.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from neotta.adapters.neo import NEOStream
from neotta.neo.stream import Estimates, Moments, StreamRule


class RiseAndFallRule(StreamRule):
    """Gate by how much farther the highest logit rises above the mean than the lowest falls below it.

    For K equal classes without noise (rise - fall) / (rise + fall) is about 1 - 2 / K, whatever the number of classes
    of the head. It replaces the skewness, and the test for a class with more than half of the samples.
    """

    least: float = 0.12
    seen: ClassVar[dict[str, Tensor]]  # of one stream, or of K that stay the same

    def model_post_init(self, context: Any) -> None:
        """Nothing was seen yet."""
        super().model_post_init(context)
        self.__dict__["seen"] = {}

    def update(self, states: Tensor, rows: Tensor, weights: Tensor | None, bias: Tensor) -> tuple[Tensor, Tensor]:
        """See `StreamRule`; the rows are needed once the new mean is known."""
        logits = rows.double()
        self.seen["rows"] = logits - logits.mean(-1, keepdim=True) - (bias - bias.mean())
        return super().update(states, rows, weights, bias)

    def estimates(self, scales: Tensor) -> Estimates:
        """The estimates of `StreamRule` with another gate."""
        moments = Moments.of(scales)
        apart = self.seen["rows"][:, None] - (moments.sum1 / moments.weight[..., None])[:, :, None]
        both = torch.stack([apart.amax(-1).mean(-1), -apart.amin(-1).mean(-1)], -1)
        before = self.seen.get("weight", torch.zeros_like(moments.weight[:, 0]))
        new = (moments.weight[:, 0] - before)[:, None, None]
        keep = torch.stack([torch.ones_like(new), (-new / self.window).exp()], 1)[..., 0]
        self.seen["both"] = self.seen.get("both", torch.zeros_like(both)) * keep + new * both
        self.seen["weight"] = moments.weight[:, 0]
        rise, fall = self.seen["both"].unbind(-1)
        own = super().estimates(scales)
        return own._replace(skewed=rise - fall - self.least * (rise + fall), balanced=torch.ones_like(own.balanced))


class MomentSharesRule(StreamRule):
    """Shares of the classes from the spread of their logits, which a shift cannot change, not from the predictions.

    A logit that is higher by s for a share p of the samples has the variance s^2 p (1 - p) more than the others; which
    of the two solutions it is, its skewness tells.
    """

    def estimates(self, scales: Tensor) -> Estimates:
        """The estimates of `StreamRule` with other shares."""
        own, moments = super().estimates(scales), Moments.of(scales)
        classes, weight = moments.sum1.shape[-1], moments.weight[..., None]
        mean, second, third = (part / weight for part in (moments.sum1, moments.sum2, moments.sum3))
        spread = second - mean * mean
        skewed = third - 3 * mean * second + 2 * mean**3
        height = (moments.peak / moments.trust)[..., None] * (classes / (classes - 1))
        product = ((spread - spread.amin(-1, keepdim=True)) / (height * height)).clamp(0, 0.25)
        share = (1 - (1 - 4 * product).sqrt()) / 2
        share = torch.where(skewed < 0, 1 - share, share)
        share = share / share.sum(-1, keepdim=True).clamp(min=1e-9)
        return own._replace(shift=mean - height * (share - 1 / classes))


class CautiousRule(StreamRule):
    """Do not believe a shift that is shorter than a part of the spread: the mean of clean logits is not zero either."""

    part: float = 0.1

    def estimates(self, scales: Tensor) -> Estimates:
        """The estimates of `StreamRule` with more noise over all time."""
        own = super().estimates(scales)
        more = torch.stack([self.part**2 * own.variance[:, 0], torch.zeros_like(own.variance[:, 1])], 1)
        return own._replace(noise=own.noise + more)


class RiseAndFall(NEOStream):
    """NEO-Stream that counts visible classes by rise and fall."""

    name, title, Options = "rise-and-fall", "rise-and-fall", RiseAndFallRule


class MomentShares(NEOStream):
    """NEO-Stream with shares of the classes from the moments of the logits."""

    name, title, Options = "moment-shares", "moment-shares", MomentSharesRule


class Cautious(NEOStream):
    """NEO-Stream that does not believe small shifts."""

    name, title, Options = "cautious", "cautious", CautiousRule

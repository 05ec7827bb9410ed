"""Batch-norm layers that normalise with statistics chosen by a rule, and the rules of `bn` and RoTTA."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from neotta._warning import warn
from neotta.neo.norms import stand_in


class Statistics(NamedTuple):
    """Mean and variance of each channel, (channels,) each."""

    mean: Tensor
    variance: Tensor


Rule = Callable[[Tensor, Statistics], Statistics | None]
"""From a layer's input, (B, channels, ...), and its source statistics to those it normalises with.

None stands for mean and (biased) variance of the batch.
"""


class RuleNorm(_BatchNorm):
    """A batch-norm layer that normalises as its `rule` says; make one with `rule_norm`.

    Gradients flow through statistics that depend on the input. With a single value per channel there are no statistics
    of the batch: the rule is not asked, the source statistics are used, and a warning says so once.
    """

    rule: Rule
    needs_values: bool
    _given: Statistics | None
    _warned: bool

    @property
    def running_mean(self) -> Tensor | None:  # type: ignore[override]
        """What the layer's own forward pass finds as its stored mean, (channels,)."""
        return None if self._given is None else self._given.mean

    @property
    def running_var(self) -> Tensor | None:  # type: ignore[override]
        """What the layer's own forward pass finds as its stored variance, (channels,)."""
        return None if self._given is None else self._given.variance

    def forward(self, input: Tensor) -> Tensor:
        """Normalise; input and output (B, channels, ...)."""
        source = Statistics(self._buffers["running_mean"], self._buffers["running_var"])  # type: ignore[arg-type]
        if self.needs_values and values_per_channel(input) <= 1:
            self._warn()
            chosen: Statistics | None = source
        else:
            chosen = self.rule(input, source)
        if chosen is not None:
            dtype = input.dtype if self.weight is None else self.weight.dtype
            chosen = Statistics(*(part.to(input.device, dtype) for part in chosen))
            if chosen.mean.requires_grad:  # torch's own layer has no gradient by given statistics
                mean, variance = (part.view(-1, *[1] * (input.dim() - 2)) for part in chosen)
                input = (input - mean) / (variance + self.eps).sqrt()
                unit = torch.ones_like(chosen.variance, requires_grad=False)
                chosen = Statistics(torch.zeros_like(unit), unit - self.eps)
        self._given = chosen
        try:
            return super().forward(input)
        finally:
            self._given = None

    def _warn(self) -> None:
        if not self._warned:
            self._warned = True
            warn("one value per channel has no statistics: the stored ones of this batch-norm layer are used")


def rule_norm(layer: _BatchNorm, rule: Rule, needs_values: bool = True) -> RuleNorm:
    """Make the stand-in for a batch-norm layer; it shares the layer's parameters, buffers and hooks.

    Args:
        layer: The layer.
        rule: Chooses the statistics.
        needs_values: Whether the rule needs several values per channel.
    """
    new: RuleNorm = stand_in(layer, RuleNorm, rule=rule, needs_values=needs_values, _given=None, _warned=False)
    return new


def values_per_channel(input: Tensor) -> int:
    """Number of values per channel, n = B h w."""
    return input.numel() // max(input.shape[1], 1)


def batch_statistics(input: Tensor, unbiased: bool) -> Statistics:
    """Mean and variance of each channel over a batch, (B, channels, ...), in float32 at least."""
    wide = input.float() if input.dtype.itemsize < 4 else input
    variance, mean = torch.var_mean(wide, [0, *range(2, input.dim())], unbiased=unbiased)
    return Statistics(mean, variance)


def mixed(first: Statistics, second: Statistics, weight: float) -> Statistics:
    """(1 - weight) first + weight second, in the dtype of the second."""
    pairs = zip(first, second, strict=True)
    return Statistics(*((1 - weight) * one.to(other) + weight * other for one, other in pairs))

"""BN: normalise with the statistics of the test data.

Papers: Nado et al., "Evaluating Prediction-Time Batch Normalization for Robustness under Covariate Shift", 2020;
Schneider et al., "Improving robustness against common corruptions by covariate shift adaptation", NeurIPS 2020.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from neotta._warning import warn
from neotta.adapters._methods import register
from neotta.adapters.base import Adapter
from neotta.adapters.declaration import Declaration
from neotta.neo.find_head import logits_of
from neotta.neo.model_inputs import call
from neotta.neo.module_swap import ModuleSwap
from neotta.neo.norms import norm_layers, stand_in
from neotta.options import Options

Share = Annotated[float, Field(ge=0, le=1)]


class BNOptions(Options):
    presets: ClassVar = {"original-single": {"statistics": "mix", "alpha": 0.1}}

    statistics: Literal["batch", "mix", "mean_only", "var_only", "ema"] = Field(
        "batch",
        description='"batch" normalises with mean and variance of the batch, "mix" with those mixed with the source '
        'model\'s, "mean_only" and "var_only" with one of the two, "ema" with a moving average of batches. As in the '
        'published code, only "batch" takes the biased variance.',
    )
    alpha: Share | None = Field(None, description='Weight of the batch in "mix"; 0.1 if neither it nor N is given.')
    prior_samples: Annotated[float, Field(ge=0)] | None = Field(
        None, description='N: "mix" weighs the source statistics like N images, so that alpha = B / (N + B).'
    )
    scope: Literal["model", "layer"] = Field(
        "model",
        description='"ema": "model" collects in one pass, normalised with the batch, and predicts in a second; '
        '"layer" collects and normalises in one.',
    )
    momentum: Share | None = Field(
        0.1, description='"ema": weight of the newest batch; None is a plain average that forgets the source model.'
    )

    @model_validator(mode="after")
    def _possible(self) -> BNOptions:
        if self.alpha is not None and self.prior_samples is not None:
            raise ValueError("alpha and prior_samples both say how to mix: give one of them")
        return self


# ---- layers that normalise with statistics chosen by a rule


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
    _statistics: Statistics | None
    _warned: bool

    @property
    def running_mean(self) -> Tensor | None:  # type: ignore[override]
        """What the layer's own forward pass finds as its stored mean, (channels,)."""
        return None if self._statistics is None else self._statistics.mean

    @property
    def running_var(self) -> Tensor | None:  # type: ignore[override]
        """What the layer's own forward pass finds as its stored variance, (channels,)."""
        return None if self._statistics is None else self._statistics.variance

    def forward(self, input: Tensor) -> Tensor:
        """Normalise; input and output (B, channels, ...)."""
        source = Statistics(self._buffers["running_mean"], self._buffers["running_var"])  # type: ignore[arg-type]
        if self.needs_values and input.numel() <= input.shape[1]:
            if not self._warned:
                self._warned = True
                warn("one value per channel has no statistics: the stored ones of this batch-norm layer are used")
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
        self._statistics = chosen
        try:
            return super().forward(input)
        finally:
            self._statistics = None


def rule_norm(layer: _BatchNorm, rule: Rule, needs_values: bool = True) -> RuleNorm:
    """Make the stand-in for a batch-norm layer; it shares the layer's parameters, buffers and hooks."""
    new: RuleNorm = stand_in(layer, RuleNorm, rule=rule, needs_values=needs_values, _statistics=None, _warned=False)
    return new


def batch_statistics(input: Tensor, unbiased: bool) -> Statistics:
    """Mean and variance of each channel over a batch, (B, channels, ...), in float32 at least."""
    wide = input.float() if input.dtype.itemsize < 4 else input
    variance, mean = torch.var_mean(wide, [0, *range(2, input.dim())], unbiased=unbiased)
    return Statistics(mean, variance)


def mixed(first: Statistics, second: Statistics, weight: float) -> Statistics:
    """(1 - weight) first + weight second, in the dtype of the second."""
    pairs = zip(first, second, strict=True)
    return Statistics(*((1 - weight) * one.to(other) + weight * other for one, other in pairs))


# ---- the method


class Running:
    """The moving average of the statistics of one layer, (channels,) each, in float32 at least."""

    def __init__(self, source: Statistics, momentum: float | None) -> None:
        dtype = torch.promote_types(source.mean.dtype, torch.float32)
        self.mean, self.variance = (part.detach().to(dtype, copy=True) for part in source)
        self.batches = torch.zeros((), dtype=torch.int64)
        self.momentum = momentum
        # Whether it moves; and then whether its layer normalises with the batch or with the average.
        self.collecting: Literal["no", "normalise with batch", "normalise with average"] = "no"

    def __call__(self, input: Tensor, source: Statistics) -> Statistics | None:
        """The rule of the layer (see `Rule`)."""
        if self.collecting != "no":
            self._move(batch_statistics(input, unbiased=True))
        return None if self.collecting == "normalise with batch" else Statistics(self.mean, self.variance)

    def _move(self, new: Statistics) -> None:
        if not all(bool(part.isfinite().all()) for part in new):
            return
        self.batches += 1
        share = 1 / int(self.batches) if self.momentum is None else self.momentum
        for statistic, part in zip((self.mean, self.variance), new, strict=True):
            # the first batch of a plain average replaces the source
            statistic.copy_((1 - share) * statistic + share * part.to(statistic))

    def state(self) -> dict[str, Tensor]:
        """All that a continued run depends on."""
        return {"running_mean": self.mean, "running_var": self.variance, "batches": self.batches}


@register
class BN(Adapter[BNOptions]):
    """Batch normalisation with the statistics of the test data instead of the source's.

    On a model without BatchNorm layers it is the source model, with a warning. Before the first batch an average that
    forgets the source is the source's, where published code has mean 0 and variance 1.
    """

    name = "bn"
    title = "BN"
    paper = "Evaluating Prediction-Time Batch Normalization for Robustness under Covariate Shift, 2020"
    declaration = Declaration(needs="images", hyperparameter_free=True, optimization_free=True)
    Options = BNOptions

    running: dict[str, Running]

    @property
    def forward_passes(self) -> int:
        """Two to collect a moving average over the whole model first."""
        return 2 if self._in_two_passes else 1

    @property
    def _in_two_passes(self) -> bool:
        return bool(self.running) and self.options.scope == "model"

    def _start(self) -> None:
        layers = norm_layers(self.model)
        if not layers and not hasattr(self, "running"):  # said once, not at every reset
            warn(f"bn changes nothing: {type(self.model).__name__} has no BatchNorm layers")
        self.add_state("running", {})
        if self.options.statistics == "ema":
            for name, layer in layers:
                source = Statistics(layer.running_mean, layer.running_var)  # type: ignore[arg-type]
                self.running[name] = Running(source, self.options.momentum)
        rules: dict[str, Rule] = {name: self.running.get(name) or self._rule for name, _ in layers}
        self._norms = ModuleSwap(self.model, {layer: rule_norm(layer, rules[name]) for name, layer in layers})

    def _rule(self, input: Tensor, source: Statistics) -> Statistics | None:
        chosen = self.options
        if chosen.statistics == "batch":
            return None
        batch = batch_statistics(input, unbiased=True)
        if chosen.statistics == "mean_only":
            return source._replace(mean=batch.mean)
        if chosen.statistics == "var_only":
            return source._replace(variance=batch.variance)
        alpha = 0.1 if chosen.alpha is None else chosen.alpha
        prior = chosen.prior_samples
        return mixed(source, batch, alpha if prior is None else len(input) / (prior + len(input)))

    def _predict(self, images: Tensor) -> Tensor:
        with self._norms:
            return self.keep(logits_of(call(self.model, images)))

    def _adapt(self, images: Tensor) -> Tensor:
        if not self.running:
            return self._predict(images)
        before = self.state_dict()
        try:
            for each in self.running.values():
                each.collecting = "normalise with batch" if self._in_two_passes else "normalise with average"
            logits = self._predict(images)
        except BaseException:
            self.load_state_dict(before)
            raise
        finally:
            for each in self.running.values():
                each.collecting = "no"
        if not self.usable(logits):
            self.load_state_dict(before)
            return self._predict(images)
        return self._predict(images) if self._in_two_passes else logits

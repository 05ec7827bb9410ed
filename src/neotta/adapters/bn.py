"""BN: normalise with the statistics of the test data.

Papers: Nado et al., "Evaluating Prediction-Time Batch Normalization for Robustness under Covariate Shift", 2020;
Schneider et al., "Improving robustness against common corruptions by covariate shift adaptation", NeurIPS 2020.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from neotta._warning import warn
from neotta.adapters._methods import register
from neotta.adapters._norm_statistics import Rule, Statistics, batch_statistics, mixed, rule_norm
from neotta.adapters._safety import GuardedAdapter
from neotta.adapters.declaration import Declaration
from neotta.neo.find_head import logits_of
from neotta.neo.model_inputs import call
from neotta.neo.module_swap import ModuleSwap
from neotta.neo.norms import norm_layers
from neotta.options import Options

Share = Annotated[float, Field(ge=0, le=1)]


class BNOptions(Options):
    """Options of BN."""

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


class Running:
    """The moving average of the statistics of one layer.

    Attributes:
        mean: (channels,), in float32 at least; so is the variance.
        batches: How many batches it holds, a scalar.
        collecting: Whether it moves; and then whether its layer normalises with the batch or with the average.
    """

    def __init__(self, source: Statistics, momentum: float | None) -> None:
        dtype = torch.promote_types(source.mean.dtype, torch.float32)
        self.mean, self.variance = (part.detach().to(dtype, copy=True) for part in source)
        self.batches = torch.zeros((), dtype=torch.int64)
        self.momentum = momentum
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
        for kept, part in zip((self.mean, self.variance), new, strict=True):
            kept.copy_((1 - share) * kept + share * part.to(kept))  # the first of a plain average replaces the source

    def state(self) -> dict[str, Tensor]:
        """All that a continued run depends on."""
        return {"running_mean": self.mean, "running_var": self.variance, "batches": self.batches}


@register
class BN(GuardedAdapter[BNOptions]):
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
        self.running = {}
        if self.options.statistics == "ema":
            for name, layer in layers:
                source = Statistics(layer.running_mean, layer.running_var)  # type: ignore[arg-type]
                self.running[name] = Running(source, self.options.momentum)
        rules: dict[str, Rule] = {name: self.running.get(name) or self._rule() for name, _ in layers}
        self._norms = ModuleSwap(self.model, {layer: rule_norm(layer, rules[name]) for name, layer in layers})

    def _rule(self) -> Rule:
        """How a layer's statistics follow from batch and source alone."""

        def mix(input: Tensor, source: Statistics) -> Statistics:
            prior = self.options.prior_samples
            alpha = 0.1 if self.options.alpha is None else self.options.alpha
            share = alpha if prior is None else len(input) / (prior + len(input))
            return mixed(source, batch_statistics(input, unbiased=True), share)

        rules: dict[str, Callable[[Tensor, Statistics], Statistics | None]] = {
            "batch": lambda input, source: None,
            "mix": mix,
            "mean_only": lambda input, source: source._replace(mean=batch_statistics(input, unbiased=True).mean),
            "var_only": lambda input, source: source._replace(variance=batch_statistics(input, unbiased=True).variance),
        }
        return rules[self.options.statistics]

    def _forward(self, images: Tensor) -> Tensor:
        with self._norms:
            return self.keep(logits_of(call(self.model, images)))

    def _predict(self, images: Tensor) -> Tensor:
        return self._forward(images)

    def _adapt(self, images: Tensor) -> Tensor:
        if not self.running:
            return self._forward(images)
        before = self.state_dict()
        try:
            for each in self.running.values():
                each.collecting = "normalise with batch" if self._in_two_passes else "normalise with average"
            logits = self._forward(images)
        except BaseException:
            self.load_state_dict(before)
            raise
        finally:
            for each in self.running.values():
                each.collecting = "no"
        if not self.usable(logits):
            self.load_state_dict(before)
            return self._forward(images)
        return self._forward(images) if self._in_two_passes else logits

    def _state(self) -> dict[str, Tensor]:
        return {
            f"{layer}.{name}": tensor
            for layer, running in self.running.items()
            for name, tensor in running.state().items()
        }

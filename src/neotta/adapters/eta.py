"""ETA: minimise the entropy of predictions that are reliable and unlike those before.

Paper: Niu et al., "Efficient Test-Time Model Adaptation without Forgetting", ICML 2022.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, TypeVar

import torch
from pydantic import Field, Strict
from torch import Tensor, nn

from neotta.adapters._methods import register
from neotta.adapters._optimizers import make_optimizer
from neotta.adapters._selection import (
    EntropyMargin,
    Selection,
    average,
    entropy_margin,
    redundant_to,
    surer_weigh_more,
    undefined,
)
from neotta.adapters._steps import Objective, StepOptions, take_steps
from neotta.adapters._uncertainty import UncertaintyOptions
from neotta.adapters.declaration import Declaration
from neotta.adapters.gradient import GradientAdapter, norm_affine
from neotta.options import named

Quirk = Literal["reset_keeps_probs"]
KEPT = 0.9
"""How much of the mean prediction is kept at each batch."""


class ETAOptions(StepOptions, UncertaintyOptions):
    """Options of ETA."""

    presets: ClassVar = {
        "original": {"lr": 2.5e-4},
        "come": {"uncertainty": "come"},
        "cifar": {"optimizer": "adam", "lr": 1e-3, "d_margin": 0.4},
        "cifar100": {"optimizer": "adam", "lr": 1e-3, "d_margin": 0.1},
    }

    e_margin: EntropyMargin | None = Field(
        None, description="Samples of lower entropy are reliable; None is 0.4 ln C for C classes."
    )
    d_margin: float = Field(
        0.05,
        ge=0,
        description="A prediction whose cosine with the mean prediction so far is not below it is redundant. With few "
        "classes nearly all are: use 0.4 for ten.",
    )
    compat: Annotated[tuple[Quirk, ...], Strict(False), named("eata")] = Field(
        (),
        description="Mistakes of the reference code to reproduce: reset keeps the mean prediction "
        '("reset_keeps_probs").',
    )


E_ = TypeVar("E_", bound=ETAOptions)


class Selective(GradientAdapter[E_]):
    """What ETA and EATA share."""

    paper = "Efficient Test-Time Model Adaptation without Forgetting, ICML 2022"

    mean_probabilities: Tensor
    """The mean of the predictions that were learnt from, (C,); NaN while undefined."""

    @property
    def forward_passes(self) -> int:
        """One for each step."""
        return self.options.steps

    @property
    def margin(self) -> float:
        """The entropy below which a sample is reliable, E0."""
        return entropy_margin(self.options.e_margin, self.num_classes)

    def _trained(self) -> dict[str, nn.Parameter]:
        return norm_affine(self.model)

    def _optimizer(self, params: list[Tensor]) -> torch.optim.Optimizer:
        return make_optimizer(self.options.optimizer, params, self.options)

    def _start(self) -> None:
        super()._start()
        if not (hasattr(self, "mean_probabilities") and "reset_keeps_probs" in self.options.compat):
            self.mean_probabilities = undefined(self.num_classes, self.head.weight)

    def _adapt(self, images: Tensor) -> Tensor:
        logits, learnt = take_steps(self, images, self._objective, self.options.steps)
        if learnt:
            self.watch(logits)
        return logits

    def _objective(self, images: Tensor, logits: Tensor) -> Objective | None:
        uncertainty = self.options.of(logits)
        probabilities = logits.detach().softmax(dim=1)
        chosen = self._select(uncertainty.detach(), probabilities).selected
        if not bool(chosen.any()):
            return None
        kept = uncertainty[chosen]
        loss = (kept * surer_weigh_more(kept, self.margin)).mean()
        seen = probabilities[chosen].mean(dim=0)
        return Objective(loss + self._anchored(), lambda: average(self.mean_probabilities, seen, KEPT))

    def _select(self, uncertainty: Tensor, probabilities: Tensor) -> Selection:
        reliable = uncertainty < self.margin
        if bool(self.mean_probabilities.isnan().any()):
            return Selection(reliable, reliable)
        redundant = redundant_to(self.mean_probabilities, probabilities, self.options.d_margin)
        return Selection(reliable, reliable & ~redundant)

    def _anchored(self) -> Tensor | float:
        """A further loss that keeps weights near the source."""
        return 0.0

    def _state(self) -> dict[str, Tensor]:
        return {**super()._state(), "mean_probabilities": self.mean_probabilities}

    def _any_value(self, name: str) -> bool:
        return name == "mean_probabilities"  # NaN before the first batch


@register
class ETA(Selective[ETAOptions]):
    """Entropy minimisation over the norm layers, on reliable samples that are not redundant."""

    name = "eta"
    title = "ETA"
    declaration = Declaration(needs="images", gradients=True)
    Options = ETAOptions

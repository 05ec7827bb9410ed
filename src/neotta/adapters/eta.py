"""ETA: minimise the entropy of predictions that are reliable and unlike those before.

Paper: Niu et al., "Efficient Test-Time Model Adaptation without Forgetting", ICML 2022.
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal, TypeVar

from pydantic import Field, Strict
from torch import Tensor
from torch.nn import functional

from neotta.adapters._methods import register
from neotta.adapters.declaration import Declaration
from neotta.adapters.gradient import GradientAdapter, Objective, StepOptions
from neotta.adapters.losses import EntropyMargin, Selection, UncertaintyOptions, entropy_margin, surer_weigh_more
from neotta.options import named

Quirk = Literal["reset_keeps_probs"]
KEPT = 0.9
"""How much of the mean prediction is kept at each batch."""


class ETAOptions(StepOptions, UncertaintyOptions):
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


@register
class ETA(GradientAdapter[E_]):
    """Entropy minimisation over the norm layers, on reliable samples that are not redundant."""

    name = "eta"
    title = "ETA"
    paper = "Efficient Test-Time Model Adaptation without Forgetting, ICML 2022"
    declaration = Declaration(needs="images", gradients=True)
    Options: ClassVar[type[ETAOptions]] = ETAOptions

    mean_probabilities: Tensor
    """The mean of the predictions that were learnt from, (C,); NaN while undefined."""

    @property
    def margin(self) -> float:
        """The entropy below which a sample is reliable, E0."""
        return entropy_margin(self.options.e_margin, self.num_classes)

    def _start(self) -> None:
        super()._start()
        if not (hasattr(self, "mean_probabilities") and "reset_keeps_probs" in self.options.compat):
            nothing = self.head.weight.new_full((self.num_classes,), math.nan)
            self.add_state("mean_probabilities", nothing, any_value=True)

    def _adapt(self, images: Tensor) -> Tensor:
        logits, learnt = self.take_steps(images, self._objective)
        if learnt:
            self.watch(logits)
        return logits

    def _objective(self, images: Tensor, logits: Tensor) -> Objective | None:
        uncertainty = self.options.of(logits)
        probabilities = logits.detach().softmax(dim=1)
        chosen = self._select(uncertainty.detach(), probabilities).selected
        if not bool(chosen.any()):
            return None
        losses = uncertainty[chosen]
        loss = (losses * surer_weigh_more(losses, self.margin)).mean()
        return Objective(loss + self._anchored(), lambda: self._average(probabilities[chosen].mean(dim=0)))

    def _select(self, uncertainty: Tensor, probabilities: Tensor) -> Selection:
        reliable = uncertainty < self.margin
        if bool(self.mean_probabilities.isnan().any()):
            return Selection(reliable, reliable)
        mean = self.mean_probabilities.to(probabilities).unsqueeze(0)
        cosine = functional.cosine_similarity(mean, probabilities, dim=1)
        return Selection(reliable, reliable & (cosine.abs() < self.options.d_margin))

    def _average(self, new: Tensor) -> None:
        mean = self.mean_probabilities
        mean.copy_(new if bool(mean.isnan().any()) else KEPT * mean + (1 - KEPT) * new)

    def _anchored(self) -> Tensor | float:
        return 0.0

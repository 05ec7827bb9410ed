"""TENT: minimise the entropy of the predictions by the scale and shift of the norm layers.

Paper: Wang et al., "Tent: Fully Test-Time Adaptation by Entropy Minimization", ICLR 2021.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from neotta.adapters._methods import register
from neotta.adapters.declaration import Declaration
from neotta.adapters.gradient import (
    Betas,
    Episodic,
    Epsilon,
    GradientAdapter,
    LearningRate,
    Momentum,
    Objective,
    Steps,
    WeightDecay,
)
from neotta.adapters.losses import UncertaintyOptions


class TENTOptions(UncertaintyOptions):
    presets: ClassVar = {
        "original": {"optimizer": "sgd", "lr": 2.5e-4, "momentum": 0.9},
        "original-cifar10": {"optimizer": "adam", "lr": 1e-3},
        "come": {"optimizer": "sgd", "lr": 1e-3, "momentum": 0.9, "uncertainty": "come"},
    }

    optimizer: Literal["adam", "sgd"] = Field("adam", description="The optimiser.")
    lr: LearningRate = 2.5e-4
    momentum: Momentum = 0.9
    betas: Betas = (0.9, 0.999)
    eps: Epsilon = 1e-8
    weight_decay: WeightDecay = 0.0
    steps: Steps = 1
    episodic: Episodic = False


@register
class TENT(GradientAdapter[TENTOptions]):
    """Entropy minimisation over the norm layers."""

    name = "tent"
    title = "TENT"
    paper = "Tent: Fully Test-Time Adaptation by Entropy Minimization, ICLR 2021"
    declaration = Declaration(needs="images", gradients=True)
    Options = TENTOptions

    def _adapt(self, images: Tensor) -> Tensor:
        if self.options.episodic:
            self._start()
        logits, _ = self.take_steps(images, lambda images, logits: Objective(self.options.of(logits).mean()))
        self.watch(logits)
        return logits

"""CoTTA: a student learns from the averaged predictions of a teacher, the moving average of the student.

Paper: Wang et al., "Continual Test-Time Domain Adaptation", CVPR 2022.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from neotta.adapters._methods import register
from neotta.adapters.augment import AugmentingAdapter, AugmentingOptions
from neotta.adapters.declaration import Declaration
from neotta.adapters.gradient import LearningRate, OptimizerOptions, move_towards, weights_and_biases
from neotta.adapters.losses import cross_entropy


class CoTTAOptions(OptimizerOptions, AugmentingOptions):
    presets: ClassVar = {
        "paper-cifar10": {"optimizer": "adam", "lr": 1e-3},
        "original": {"lr": 1e-2, "nesterov": True},
        "original-cifar10": {
            "optimizer": "adam",
            "lr": 1e-3,
            "anchor_threshold": 0.92,
            "restore_probability": 0.01,
            "loss": "one-sided",
        },
    }

    ema: float = Field(0.999, ge=0, le=1, description="How much of the teacher is kept at each step.")
    anchor_threshold: float = Field(
        0.1, description="Mean confidence of the source model below which the teacher averages augmented views."
    )
    num_augmentations: int = Field(32, ge=1, description="Number of augmented views.")
    restore_probability: float = Field(
        0.001, ge=0, le=1, description="Probability, at each step, that a weight is reset to its source value."
    )
    loss: Literal["symmetric", "one-sided"] = Field(
        "symmetric", description="Which cross-entropy between teacher and student."
    )
    eval_with: Literal["student", "teacher"] = Field("student", description="Which network predicts without adapting.")
    lr: LearningRate = 5e-3


@register
class CoTTA(AugmentingAdapter[CoTTAOptions]):
    """A student, its moving average as the teacher, and the source model as an anchor.

    The three networks share all that is never trained. The student is `params`; the anchor is the model itself.
    """

    name = "cotta"
    title = "CoTTA"
    paper = "Continual Test-Time Domain Adaptation, CVPR 2022"
    declaration = Declaration(
        needs="images",
        pixels=True,
        gradients=True,
        normalisation=True,
        random=True,
        forward_passes=34,
        published_passes=35,
    )
    Options = CoTTAOptions

    teacher: dict[str, Tensor]

    @property
    def forward_passes(self) -> int:
        """Student and anchor, and the teacher for each view; or once for the images, if the anchor is confident."""
        return 2 + self.options.num_augmentations

    def _trained(self) -> dict[str, nn.Parameter]:
        return weights_and_biases(self.model)

    def _start(self) -> None:
        super()._start()
        self.add_state("teacher", {name: tensor.detach().clone() for name, tensor in self.params.items()})

    def _predict(self, images: Tensor) -> Tensor:
        return self.forward(images, self.params if self.options.eval_with == "student" else self.teacher)

    def _learn(self, images: Tensor) -> tuple[Tensor, bool]:
        target = self._target(images)
        if not self.usable(target):
            return target, False
        with torch.enable_grad():
            logits = self.forward(images)
            if not self.usable(logits):
                return target, False
            grads = self.gradients(self._loss(logits, target))
        if not self.step(grads, len(images)):
            return target, False
        move_towards(self.teacher, self.params, 1 - self.options.ema)
        self._restore()
        return target, True

    def _target(self, images: Tensor) -> Tensor:
        """The teacher's prediction, (B, C): for the images, or averaged over views if the anchor is unsure."""
        anchor = self.forward(images, {})
        if bool(anchor.softmax(dim=1).amax(dim=1).mean() < self.options.anchor_threshold):
            views = self.options.num_augmentations
            total = self.forward(self.view(images), self.teacher)
            for _ in range(views - 1):
                total = total + self.forward(self.view(images), self.teacher)
            return total / views
        return self.forward(images, self.teacher)

    def _loss(self, student: Tensor, teacher: Tensor) -> Tensor:
        one_sided = cross_entropy(student, teacher).mean()
        if self.options.loss == "one-sided":
            return one_sided
        return (one_sided + cross_entropy(teacher, student).mean()) / 2

    def _restore(self) -> None:
        if self.options.restore_probability == 0:
            return
        for name, tensor in self.params.items():
            restored = self._restore_mask(name, tensor)
            tensor.copy_(torch.where(restored, self.model.get_parameter(name), tensor))

    def _restore_mask(self, name: str, tensor: Tensor) -> Tensor:
        drawn = torch.rand(tensor.shape, generator=self.generator)  # float32, so that the dtype changes nothing
        return (drawn < self.options.restore_probability).to(tensor.device)

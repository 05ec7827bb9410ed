"""ROID: certainty and diversity weights, consistency with a view, weights drawn to the source, and a class prior.

Paper: Marsden, Döbler and Yang, "Universal Test-time Adaptation through Weight Ensembling, Diversity Weighting, and
Prior Correction", WACV 2024.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field, Strict
from torch import Tensor
from torch.nn import functional

from neotta.adapters._methods import register
from neotta.adapters.augment import AugmentingAdapter, AugmentingOptions, Style
from neotta.adapters.declaration import Declaration
from neotta.adapters.gradient import LearningRate, Objective, StepOptions, move_towards
from neotta.adapters.losses import cross_entropy, entropy
from neotta.options import named

Quirk = Literal["prior_on_logits"]
Share = Annotated[float, Field(ge=0, le=1)]


class ROIDOptions(StepOptions, AugmentingOptions):
    presets: ClassVar = {
        "original": {"nesterov": True},
        "cifar": {"optimizer": "adam", "lr": 1e-3},
    }

    lr: LearningRate = 2.5e-4
    use_weighting: bool = Field(True, description="Whether sure and unusual predictions weigh more.")
    use_consistency: bool = Field(True, description="Whether predictions are to agree with those for a view.")
    use_prior_correction: bool = Field(True, description="Whether answers take the class shares of the batch in.")
    momentum_src: Share = Field(0.99, description="How much of the weights is kept at each step; the rest is source.")
    momentum_probs: Share = Field(0.9, description="How much of the mean prediction is kept at each batch.")
    temperature: float = Field(1 / 3, gt=0, description="Temperature of the weights, T.")
    batch_size: Annotated[int, Field(ge=1)] | None = Field(
        None,
        description="What the loss is divided by; None is the size of the batch at hand. Published code takes the "
        "configured size, so that a shorter last batch has a smaller step.",
    )
    compat: Annotated[tuple[Quirk, ...], Strict(False), named("roid")] = Field(
        (),
        description='Mistakes of the reference code to reproduce: "prior_on_logits" multiplies the logits, rather than '
        "the probabilities, by the class prior.",
    )


@register
class ROID(AugmentingAdapter[ROIDOptions]):
    """Weighted soft likelihood ratio and consistency over the norm layers, held near the source.

    Without adapting it predicts plainly: the prior belongs to a batch that is adapted to.
    """

    name = "roid"
    title = "ROID"
    paper = (
        "Universal Test-time Adaptation through Weight Ensembling, Diversity Weighting, and Prior Correction, WACV 2024"
    )
    declaration = Declaration(
        needs="images", pixels=True, gradients=True, normalisation=True, random=True, forward_passes=2
    )
    Options = ROIDOptions
    style = Style(blur=False, noise=False, edge="reflect")

    class_probabilities: Tensor
    """The running mean of all predictions, (C,)."""

    @property
    def forward_passes(self) -> int:
        """One, and one for the view, for each step."""
        return (1 + self.options.use_consistency) * self.options.steps

    def _start(self) -> None:
        super()._start()
        self.add_state(
            "class_probabilities", self.head.weight.new_full((self.num_classes,), 1 / self.num_classes).detach()
        )

    def _learn(self, images: Tensor) -> tuple[Tensor, bool]:
        logits, learnt = self.take_steps(images, self._objective)
        if self.options.use_prior_correction and bool(logits.isfinite().all()):
            logits = self._corrected(logits)
        return logits, learnt

    def _objective(self, images: Tensor, logits: Tensor) -> Objective:
        probabilities = logits.softmax(dim=1)
        seen = probabilities.detach()
        weight, rows = self._weights(seen, logits.detach())
        losses = soft_likelihood_ratio(probabilities)[rows]
        if self.options.use_consistency:
            view = self.forward(self.view(images[rows]))
            losses = losses + (cross_entropy(view, logits[rows]) + cross_entropy(logits[rows], view)) / 2
        loss = (weight[rows] * losses).sum() / (self.options.batch_size or len(images))

        def commit() -> None:
            if self.options.use_weighting:
                self.class_probabilities.lerp_(seen.mean(dim=0), 1 - self.options.momentum_probs)
            source = {name: self.model.get_parameter(name) for name in self.params}
            move_towards(self.params, source, 1 - self.options.momentum_src)

        return Objective(loss, commit)

    def _weights(self, probabilities: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Weights by how unlike the mean a prediction is, and how sure; and which are not too usual; (B,) each."""
        if not self.options.use_weighting:
            return probabilities.new_ones(len(logits)), torch.ones_like(logits[:, 0], dtype=torch.bool)
        usual = functional.cosine_similarity(self.class_probabilities.unsqueeze(0), probabilities, dim=1)
        diversity, certainty = to_unit_range(1 - usual), to_unit_range(-entropy(logits))
        weight = (diversity * certainty / self.options.temperature).exp()
        return weight, ~(diversity < diversity.mean())

    def _corrected(self, logits: Tensor) -> Tensor:
        """Take the class shares of a batch, smoothed, into its answers, (B, C)."""
        prior = logits.softmax(dim=1).mean(dim=0)
        smooth = max(1 / len(logits), 1 / len(prior)) / prior.max()
        prior = (prior + smooth) / (1 + smooth * len(prior))
        return logits * prior if "prior_on_logits" in self.options.compat else logits + prior.log()


def to_unit_range(values: Tensor) -> Tensor:
    """Values of a batch, (B,), scaled to [0, 1]; 0 if they are all equal."""
    low, high = values.aminmax()
    return (values - low) / (high - low) if bool(high > low) else torch.zeros_like(values)


def soft_likelihood_ratio(probabilities: Tensor) -> Tensor:
    """The negative expected log odds of each prediction, (B, C) to (B,); what is surer than 0.99 has no gradient."""
    clamped = probabilities.clamp(max=0.99)
    return -(clamped * (clamped / (1 - clamped) + 1e-5).log()).sum(dim=1)

"""SAR: minimise the entropy of reliable predictions, sharpness-aware, and start again when the model collapses.

Paper: Niu et al., "Towards Stable Test-Time Adaptation in Dynamic Wild World", ICLR 2023.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field, Strict
from torch import Tensor, nn

from neotta.adapters._methods import register
from neotta.adapters.declaration import Declaration
from neotta.adapters.gradient import (
    NORM_LAYERS,
    Episodic,
    GradientAdapter,
    LearningRate,
    Momentum,
    Steps,
    all_finite,
    norm_affine,
)
from neotta.adapters.losses import EntropyMargin, UncertaintyOptions, entropy_margin
from neotta.errors import UnsupportedModelError
from neotta.options import named

Quirk = Literal["recovery_keeps_ema", "reset_keeps_momentum"]


class SAROptions(UncertaintyOptions):
    presets: ClassVar = {"original": {"lr_scaling": "original"}, "come": {"uncertainty": "come"}}

    lr: LearningRate = 1e-3
    lr_scaling: Literal["none", "original"] = Field(
        "none",
        description='"none" uses lr for every batch. "original" is the rule of SAR\'s publication: lr is meant for 64 '
        "images and scaled with the batch size; a network without LayerNorm takes a quarter of it from 32 images on, "
        "and half of it scaled with the batch size below; a single image doubles it.",
    )
    momentum: Momentum = 0.9
    rho: float = Field(0.05, ge=0, description="Length of the sharpness-aware step.")
    margin: EntropyMargin | None = Field(
        None, description="Samples of lower entropy are reliable; None is 0.4 ln C for C classes."
    )
    reset_threshold: float = Field(
        0.2, ge=0, description="When the moving average of the loss falls below it, the source model is restored."
    )
    frozen_layers: Literal["reference"] | Annotated[int, Field(ge=0)] = Field(
        "reference",
        description='"reference" leaves out norm layers by their names, as the reference code does: stage 4 of a '
        "ResNet, blocks 9 to 11 and the final norm of a timm ViT, nothing of a Hugging Face model. A number leaves out "
        "that many last blocks, and what follows them.",
    )
    empty: Literal["momentum", "skip"] = Field(
        "momentum",
        description='What a batch without reliable samples does: a "momentum" step with zero gradient, or "skip".',
    )
    steps: Steps = 1
    episodic: Episodic = False
    compat: Annotated[tuple[Quirk, ...], Strict(False), named("sar")] = Field(
        (),
        description="Mistakes of the reference code to reproduce: a recovery keeps the low moving average "
        '("recovery_keeps_ema"), recovery and reset keep the momentum ("reset_keeps_momentum").',
    )


@register
class SAR(GradientAdapter[SAROptions]):
    """Sharpness-aware entropy minimisation over the norm layers, on reliable samples."""

    name = "sar"
    title = "SAR"
    paper = "Towards Stable Test-Time Adaptation in Dynamic Wild World, ICLR 2023"
    declaration = Declaration(needs="images", gradients=True, forward_passes=2)
    Options = SAROptions

    ema: Tensor
    """Moving average of the loss, a float64 scalar; NaN while undefined."""

    @property
    def margin(self) -> float:
        """The entropy below which a sample is reliable, E0."""
        return entropy_margin(self.options.margin, self.num_classes)

    def learning_rate(self, batch: int) -> float:
        """The learning rate for a batch of so many images."""
        lr = self.options.lr
        if self.options.lr_scaling == "none":
            return lr
        if any(isinstance(module, nn.LayerNorm) for module in self._modules):
            lr *= batch / 64
        else:
            lr *= 0.25 if batch >= 32 else 0.5 * batch / 64
        return 2 * lr if batch == 1 else lr

    # ---- what is trained

    def _start(self) -> None:
        momentum = self._momentum() if "reset_keeps_momentum" in self.options.compat else []
        super()._start()
        self.add_state("ema", torch.tensor(math.nan, dtype=torch.float64), any_value=True)  # NaN: no batch yet
        for new, old in zip(self._momentum(), momentum, strict=False):  # nothing is kept at the first start
            new.copy_(old)

    def _trained(self) -> dict[str, nn.Parameter]:
        rule = self.options.frozen_layers
        if rule == "reference":
            return norm_affine(self.model, lambda name: not frozen_by_name(name))
        frozen = last_layers(self.model, rule)
        return norm_affine(self.model, lambda name: name not in frozen)

    def _momentum(self) -> list[Tensor]:
        if not hasattr(self, "optimizer"):
            return []
        states = [self.optimizer.state[tensor] for tensor in self.params.values()]
        return [state["momentum_buffer"] for state in states if "momentum_buffer" in state]

    # ---- one batch

    def _adapt(self, images: Tensor) -> Tensor:
        if self.options.episodic:
            self._start()
        for _ in range(self.options.steps):
            with torch.enable_grad():
                logits = self.forward(images)
                if not self.usable(logits):
                    break
                grads, loss = self._sharp_gradients(images, self.options.of(logits))
            if grads is not None:
                for group in self.optimizer.param_groups:
                    group["lr"] = self.learning_rate(len(logits))
                if not self.step(grads, len(logits)):
                    break
            if loss is not None:
                before = float(self.ema)
                self.ema.fill_(loss if math.isnan(before) else 0.9 * before + 0.1 * loss)
            if float(self.ema) < self.options.reset_threshold:  # never true while undefined
                self._recover()
        logits = logits.detach()
        self.watch(logits)
        return logits

    def _sharp_gradients(self, images: Tensor, entropies: Tensor) -> tuple[list[Tensor] | None, float | None]:
        """The sharpness-aware gradient (None to take no step) and loss (None without reliable samples)."""
        reliable = entropies < self.margin
        if bool(reliable.any()):
            slope = self.gradients(entropies[reliable].mean())
            if not all_finite(slope):
                return slope, None  # `step` skips it with a warning
            climbed = self._climb(slope)
            entropies = self.options.of(self.forward(images, climbed))
            reliable = reliable & (entropies < self.margin)
            if bool(reliable.any()):
                loss = entropies[reliable].mean()
                return self.gradients(loss, climbed), float(loss.detach())
        if self.options.empty == "skip":
            return None, None
        return [torch.zeros_like(tensor) for tensor in self.params.values()], None

    @torch.no_grad()
    def _climb(self, slope: list[Tensor]) -> dict[str, Tensor]:
        """The trained tensors, as one vector, moved by `rho` along their gradient."""
        length = torch.stack([part.norm() for part in slope]).norm()
        scale = self.options.rho / (length + 1e-12)
        moved = zip(self.params.items(), slope, strict=True)
        return {name: (tensor + scale * part).requires_grad_() for (name, tensor), part in moved}

    def _recover(self) -> None:
        ema = self.ema
        self._start()
        if "recovery_keeps_ema" in self.options.compat:
            self.ema = ema


def frozen_by_name(name: str) -> bool:
    """The reference rule, by the name of a norm layer."""
    parts = ("layer4", "blocks.9", "blocks.10", "blocks.11", "norm.")
    return name == "norm" or any(part in name for part in parts)


def last_layers(model: nn.Module, count: int) -> set[str]:
    """Names of the modules of the last `count` blocks, and of all that follow."""
    if count == 0:
        return set()
    blocks = list(_blocks(model, ""))
    if not blocks:
        raise UnsupportedModelError(
            f"no blocks were found in {type(model).__name__}: use frozen_layers=0 or 'reference'"
        )
    names = [name for name, _ in model.named_modules()]
    return set(names[names.index(blocks[-count:][0]) :])


def _blocks(module: nn.Module, prefix: str) -> Iterator[str]:
    """Names of the elements of a model's outermost stacks that contain norm layers."""
    stack = isinstance(module, (nn.Sequential, nn.ModuleList))
    for name, child in module.named_children():
        inside = any(isinstance(part, NORM_LAYERS) for part in child.modules() if part is not child)
        if not inside:
            continue
        if stack:
            yield prefix + name
        else:
            yield from _blocks(child, f"{prefix}{name}.")

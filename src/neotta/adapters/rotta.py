"""RoTTA: a teacher with slow statistics predicts; a student learns from a balanced memory of what was seen.

Paper: Yuan, Xie and Li, "Robust Test-Time Adaptation in Dynamic Scenarios", CVPR 2023.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from neotta.adapters._augmenting import AugmentingAdapter, AugmentingOptions
from neotta.adapters._averaging import move_towards
from neotta.adapters._memory_bank import Entry, MemoryBank
from neotta.adapters._methods import register
from neotta.adapters._norm_statistics import Statistics, batch_statistics, mixed, rule_norm
from neotta.adapters._optimizers import make_optimizer
from neotta.adapters._steps import OptimizerOptions
from neotta.adapters.declaration import Declaration
from neotta.adapters.gradient import norm_affine
from neotta.neo.module_swap import ModuleSwap
from neotta.neo.norms import norm_layers

Share = Annotated[float, Field(ge=0, le=1)]


class RoTTAOptions(OptimizerOptions, AugmentingOptions):
    """Options of RoTTA."""

    optimizer: Literal["sgd", "adam"] = Field("adam", description="The optimiser.")
    memory_size: int = Field(64, ge=1, description="Number of images that are kept, N.")
    update_frequency: int = Field(64, ge=1, description="Number of samples after which the student learns.")
    nu: Share = Field(0.001, description="How far the teacher follows the student at each update.")
    alpha: Share = Field(0.05, description="How far the statistics of BatchNorm layers move at each update.")
    lambda_t: float = Field(1.0, ge=0, description="Weight of the age when images of the memory are given up.")
    lambda_u: float = Field(1.0, ge=0, description="Weight of the uncertainty when images of the memory are given up.")


class Robust:
    """The statistics of a BatchNorm layer of one network, which move a little in each training pass."""

    def __init__(self, source: Statistics, alpha: float) -> None:
        self.alpha = alpha
        self.training = False
        self.kept = Statistics(*(part.detach().clone() for part in source))

    def __call__(self, input: Tensor, source: Statistics) -> Statistics:
        """The rule of the layer; in a training pass gradients flow through the statistics of the batch."""
        if not self.training:
            return self.kept
        moved = mixed(self.kept, batch_statistics(input, unbiased=False), self.alpha)
        for kept, part in zip(self.kept, moved, strict=True):
            kept.copy_(part.detach())
        return moved


class Network:
    """The tensors and statistics of the teacher or the student."""

    def __init__(self, model: nn.Module, params: dict[str, Tensor], alpha: float) -> None:
        layers = norm_layers(model)
        self.params = params
        self.norms = {
            name: Robust(Statistics(layer.running_mean, layer.running_var), alpha)  # type: ignore[arg-type]
            for name, layer in layers
        }
        pairs: dict[nn.Module, nn.Module] = {
            layer: rule_norm(layer, self.norms[name], needs_values=False) for name, layer in layers
        }
        self.swap = ModuleSwap(model, pairs)

    def statistics(self) -> dict[str, Tensor]:
        """The statistics of all layers, by name."""
        return {
            f"{layer}.{name}": tensor
            for layer, norm in self.norms.items()
            for name, tensor in zip(("running_mean", "running_var"), norm.kept, strict=True)
        }


@register
class RoTTA(AugmentingAdapter[RoTTAOptions]):
    """A student that learns from a memory, and its moving average as the teacher that predicts.

    Only the scale and shift of norm layers are trained; LayerNorm and GroupNorm too, where the published code has
    BatchNorm alone. Predictions never use statistics of the batch. The memory holds images of the stream, and so does
    a saved state.
    """

    name = "rotta"
    title = "RoTTA"
    paper = "Robust Test-Time Adaptation in Dynamic Scenarios, CVPR 2023"
    declaration = Declaration(
        needs="images",
        pixels=True,
        gradients=True,
        normalisation=True,
        random=True,
        forward_passes=3,
    )
    Options = RoTTAOptions

    student: Network
    teacher: Network
    memory: MemoryBank
    seen: Tensor
    """Number of samples so far, a scalar."""

    @property
    def forward_passes(self) -> int:
        """One, and two for an update; for a batch of at most `update_frequency` images."""
        return 3

    def _trained(self) -> dict[str, nn.Parameter]:
        return norm_affine(self.model)

    def _optimizer(self, params: list[Tensor]) -> torch.optim.Optimizer:
        return make_optimizer(self.options.optimizer, params, self.options)

    def _start(self) -> None:
        super()._start()
        chosen = self.options
        copies = {name: tensor.detach().clone() for name, tensor in self.params.items()}
        self.student = Network(self.model, self.params, chosen.alpha)
        self.teacher = Network(self.model, copies, chosen.alpha)
        self.memory = MemoryBank(chosen.memory_size, self.num_classes, chosen.lambda_t, chosen.lambda_u)
        self.seen = torch.zeros((), dtype=torch.int64)

    def _run(self, network: Network, images: Tensor, training: bool = False) -> Tensor:
        """Logits, (B, C), of a network; a training pass moves its statistics."""
        self._batch_norm = network.swap
        for norm in network.norms.values():
            norm.training = training
        try:
            return self.forward(images, network.params)
        finally:
            for norm in network.norms.values():
                norm.training = False

    def _predict(self, images: Tensor) -> Tensor:
        return self._run(self.teacher, images)

    def _learn(self, images: Tensor) -> tuple[Tensor, bool]:
        logits = self._predict(images)
        if not self.usable(logits):
            return logits, False
        probabilities = logits.softmax(dim=1)
        labels = probabilities.argmax(dim=1).tolist()
        uncertainties = -(probabilities * (probabilities + 1e-6).log()).sum(dim=1)
        for each in zip(images, labels, uncertainties.tolist(), strict=True):
            self.memory.insert(Entry(*each))
            self.seen += 1
            if int(self.seen) % self.options.update_frequency == 0:
                self._update()
        return logits, True

    def _update(self) -> None:
        """Let the student learn the teacher's predictions for the memory, and the teacher follow."""
        before = {name: tensor.clone() for name, tensor in self._statistics().items()}
        content = self.memory.content()
        ages = content["ages"].to(content["images"]) / self.options.memory_size
        taught = self._run(self.teacher, content["images"], training=True).softmax(dim=1)
        with torch.enable_grad():
            learnt = self._run(self.student, self.view(content["images"]), training=True).log_softmax(dim=1)
            loss = (-(taught * learnt).sum(dim=1) * torch.sigmoid(-ages)).mean()
            grads = self.gradients(loss)
        if self.step(grads, len(self.memory)):
            move_towards(self.teacher.params, self.params, self.options.nu)
            return
        for name, tensor in self._statistics().items():
            tensor.copy_(before[name])

    # ---- the state

    def _statistics(self) -> dict[str, Tensor]:
        both = (("student", self.student), ("teacher", self.teacher))
        return {f"{who}_stats/{name}": part for who, each in both for name, part in each.statistics().items()}

    def _state(self) -> dict[str, Tensor]:
        return {
            **super()._state(),
            **{f"teacher/{name}": tensor for name, tensor in self.teacher.params.items()},
            **self._statistics(),
            **{f"memory/{name}": tensor for name, tensor in self.memory.content().items()},
            "seen": self.seen,
        }

    def _fits(self, name: str, mine: Tensor, other: Tensor) -> bool:
        return mine.dim() == other.dim() if name.startswith("memory/") else super()._fits(name, mine, other)

    def _load(self, state: Mapping[str, Tensor]) -> None:
        before = self.memory.content()
        parts = {name.removeprefix("memory/"): state[name] for name in state if name.startswith("memory/")}
        self.memory.load(parts, self.head.weight)
        try:
            super()._load({**state, **{f"memory/{name}": part for name, part in self.memory.content().items()}})
        except Exception:
            self.memory.load(before, self.head.weight)
            raise

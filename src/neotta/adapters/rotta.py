"""RoTTA: a teacher with slow statistics predicts; a student learns from a balanced memory of what was seen.

Paper: Yuan, Xie and Li, "Robust Test-Time Adaptation in Dynamic Scenarios", CVPR 2023.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from neotta.adapters._methods import register
from neotta.adapters.augment import AugmentingAdapter, AugmentingOptions
from neotta.adapters.base import tensors_of
from neotta.adapters.bn import Statistics, batch_statistics, mixed, rule_norm
from neotta.adapters.declaration import Declaration
from neotta.adapters.gradient import OptimizerOptions, move_towards
from neotta.adapters.losses import cross_entropy
from neotta.errors import StateMismatchError
from neotta.neo.module_swap import ModuleSwap
from neotta.neo.norms import norm_layers

Share = Annotated[float, Field(ge=0, le=1)]


class RoTTAOptions(OptimizerOptions, AugmentingOptions):
    optimizer: Literal["sgd", "adam"] = Field("adam", description="The optimiser.")
    memory_size: int = Field(64, ge=1, description="Number of images that are kept, N.")
    update_frequency: int = Field(64, ge=1, description="Number of samples after which the student learns.")
    nu: Share = Field(0.001, description="How far the teacher follows the student at each update.")
    alpha: Share = Field(0.05, description="How far the statistics of BatchNorm layers move at each update.")
    lambda_t: float = Field(1.0, ge=0, description="Weight of the age when images of the memory are given up.")
    lambda_u: float = Field(1.0, ge=0, description="Weight of the uncertainty when images of the memory are given up.")


# ---- the memory


class Entry(NamedTuple):
    """An image, (3, H, W), the class it was predicted as, how uncertain that was, and how many came since."""

    image: Tensor
    label: int
    uncertainty: float
    age: int = 0


@dataclass(eq=False)
class MemoryBank:
    """At most N images, which replace each other by age and uncertainty, with the weights lambda_t and lambda_u.

    Each of C classes may have N / C images before it has to give up its own.
    """

    size: int
    classes: int
    age_weight: float
    uncertainty_weight: float
    _entries: list[Entry] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._entries)

    def insert(self, new: Entry) -> bool:
        """Take in an image if there is room, or if it scores lower than the worst of those it may replace."""
        rivals = self._rivals(new.label)
        worst = max(rivals, key=lambda index: (self._score(self._entries[index]), self._place(index)), default=None)
        accepted = worst is None or self._score(self._entries[worst]) > self._score(new)
        if worst is not None and accepted:
            del self._entries[worst]
        if accepted:
            self._entries.append(new._replace(image=new.image.clone()))  # not a view that keeps a whole batch alive
        self._entries = [entry._replace(age=entry.age + 1) for entry in self._entries]
        return accepted

    def _score(self, entry: Entry) -> float:
        """How readily an image is given up."""
        largest = math.log(self.classes) if self.classes > 1 else 1.0
        timely = self.age_weight / (1 + math.exp(-entry.age / self.size))
        return timely + self.uncertainty_weight * entry.uncertainty / largest

    def _place(self, index: int) -> tuple[int, int]:
        """Where an image stands: classes in their order, then the order of insertion."""
        return self._entries[index].label, index

    def _rivals(self, label: int) -> list[int]:
        """The images that one of this class may replace; none if there is room for it."""
        counts = Counter(entry.label for entry in self._entries)
        if counts[label] >= self.size / self.classes:
            chosen = {label}
        elif len(self) < self.size:
            return []
        else:
            chosen = {each for each, count in counts.items() if count == max(counts.values())}
        return [index for index, entry in enumerate(self._entries) if entry.label in chosen]

    def state(self) -> dict[str, Tensor]:
        """Images, (n, 3, H, W), labels, ages and uncertainties, (n,), class by class."""
        entries = [self._entries[index] for index in sorted(range(len(self)), key=self._place)]
        return {
            "images": torch.stack([entry.image for entry in entries]) if entries else torch.empty(0, 0, 0, 0),
            "labels": torch.tensor([entry.label for entry in entries], dtype=torch.int64),
            "ages": torch.tensor([entry.age for entry in entries], dtype=torch.int64),
            "uncertainties": torch.tensor([entry.uncertainty for entry in entries], dtype=torch.float64),
        }

    def load(self, content: Mapping[str, Tensor]) -> None:
        """Take over what `state` gave; the order among classes does not matter."""
        labels = content["labels"].tolist()
        if len({len(part) for part in content.values()}) > 1 or not all(0 <= label < self.classes for label in labels):
            raise StateMismatchError("the memory of this state is damaged, or of another number of classes")
        others = (content[name].tolist() for name in ("uncertainties", "ages"))
        self._entries = [Entry(*each) for each in zip(content["images"].clone(), labels, *others, strict=True)]


# ---- the networks


class Robust:
    """The statistics of a BatchNorm layer of one network, which move a little in each training pass."""

    def __init__(self, source: Statistics, alpha: float) -> None:
        self.alpha = alpha
        self.training = False
        self.current = Statistics(*(part.detach().clone() for part in source))

    def __call__(self, input: Tensor, source: Statistics) -> Statistics:
        """The rule of the layer; in a training pass gradients flow through the statistics of the batch."""
        if not self.training:
            return self.current
        moved = mixed(self.current, batch_statistics(input, unbiased=False), self.alpha)
        for statistic, part in zip(self.current, moved, strict=True):
            statistic.copy_(part.detach())
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
            for name, tensor in zip(("running_mean", "running_var"), norm.current, strict=True)
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
        needs="images", pixels=True, gradients=True, normalisation=True, random=True, forward_passes=3
    )
    Options = RoTTAOptions

    student: Network
    teacher: Network
    taught: dict[str, Tensor]
    """The tensors of the teacher."""
    statistics: dict[str, dict[str, Tensor]]
    memory: MemoryBank
    seen: Tensor
    """Number of samples so far, a scalar."""

    def _start(self) -> None:
        super()._start()
        chosen = self.options
        self.add_state("taught", {name: tensor.detach().clone() for name, tensor in self.params.items()})
        self.student = Network(self.model, self.params, chosen.alpha)
        self.teacher = Network(self.model, self.taught, chosen.alpha)
        self.add_state("statistics", {"student": self.student.statistics(), "teacher": self.teacher.statistics()})
        memory = MemoryBank(chosen.memory_size, self.num_classes, chosen.lambda_t, chosen.lambda_u)
        self.add_state("memory", memory, grows=True)
        self.add_state("seen", torch.zeros((), dtype=torch.int64))

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
        moving = tensors_of(self.statistics)
        before = {name: tensor.clone() for name, tensor in moving.items()}
        content = self.memory.state()
        ages = content["ages"].to(content["images"]) / self.options.memory_size
        taught = self._run(self.teacher, content["images"], training=True)
        with torch.enable_grad():
            learnt = self._run(self.student, self.view(content["images"]), training=True)
            grads = self.gradients((cross_entropy(learnt, taught) * torch.sigmoid(-ages)).mean())
        if self.step(grads, len(self.memory)):
            move_towards(self.teacher.params, self.params, self.options.nu)
            return
        for name, tensor in moving.items():
            tensor.copy_(before[name])

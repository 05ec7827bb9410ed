"""The base of methods that train: tensors of their own, an optimiser whose state can be saved, a random generator."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import torch
from pydantic import BeforeValidator, Field, Strict, model_validator
from torch import Tensor, nn
from torch.func import functional_call

from neotta.adapters.base import Adapter
from neotta.errors import ModelChangedError, UnsupportedModelError
from neotta.neo.find_head import logits_of
from neotta.neo.model_inputs import Inputs, switched_off
from neotta.neo.module_swap import ModuleSwap
from neotta.neo.norms import adaptive_norm, norm_layers
from neotta.options import Options

O = TypeVar("O", bound=Options)  # noqa: E741

NORM_LAYERS = (nn.LayerNorm, nn.BatchNorm2d, nn.GroupNorm)

# ---- options


def _two(value: Any) -> Any:
    if isinstance(value, (list, tuple)) and len(value) != 2:
        raise ValueError("two numbers were expected")
    return value


Beta = Annotated[float, Field(ge=0, lt=1)]
Betas = Annotated[
    tuple[Beta, Beta], Strict(False), BeforeValidator(_two), Field(description="The two decay rates of Adam.")
]
Epsilon = Annotated[float, Field(gt=0, description="Epsilon of Adam.")]
LearningRate = Annotated[float, Field(ge=0, description="Learning rate.")]
Momentum = Annotated[float, Field(ge=0, lt=1, description="Momentum of SGD.")]
WeightDecay = Annotated[float, Field(ge=0, description="Weight decay.")]
Steps = Annotated[
    int,
    Field(ge=1, description="Gradient steps per batch; the answer is that of the last forward pass, before its step."),
]
Episodic = Annotated[bool, Field(description="Start every batch from the source model.")]


class OptimizerOptions(Options):
    optimizer: Literal["sgd", "adam"] = Field("sgd", description="The optimiser.")
    lr: LearningRate = 1e-3
    momentum: Momentum = 0.9
    nesterov: bool = Field(False, description="Whether SGD uses Nesterov momentum.")
    betas: Betas = (0.9, 0.999)
    eps: Epsilon = 1e-8
    weight_decay: WeightDecay = 0.0

    @model_validator(mode="after")
    def _nesterov_is_possible(self) -> OptimizerOptions:
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov needs a momentum above 0")
        return self


class StepOptions(OptimizerOptions):
    steps: Steps = 1


class SeededOptions(Options):
    seed: int = Field(0, ge=0, lt=2**63, description="Seed of all randomness.")


S = TypeVar("S", bound=SeededOptions)


# ---- base classes


class Objective(NamedTuple):
    """What a batch asks for."""

    loss: Tensor  # a scalar with a graph
    # Called after the step, and only if it was taken, to move running quantities.
    commit: Callable[[], None] = lambda: None


class GradientAdapter(Adapter[O]):
    """A method that trains some tensors of the model.

    The trained tensors are copies that replace the model's own during a call; the model keeps the source weights, from
    which `reset` starts. BatchNorm layers normalise with the current batch.
    """

    params: dict[str, Tensor]
    optimizer: torch.optim.Optimizer

    def _trained(self) -> dict[str, nn.Parameter]:
        """The parameters of the model that are trained, by name; those of the norm layers by default."""
        return norm_affine(self.model)

    def _optimizer(self, params: list[Tensor]) -> torch.optim.Optimizer:
        """A fresh optimiser; by default that of the option `optimizer`, or SGD."""
        return make_optimizer(getattr(self.options, "optimizer", "sgd"), params, self.options)

    @property
    def forward_passes(self) -> int:
        """Largest number of forward passes for a batch: as declared, for each of the `steps`, if it is an option."""
        return self.declaration.forward_passes * int(getattr(self.options, "steps", 1))

    def _start(self) -> None:
        if self.head.weight.dtype.itemsize < 4:
            raise UnsupportedModelError(
                f"{self.name} trains the model, for which {self.head.weight.dtype} is too coarse: use float32"
            )
        trained = self._trained()
        if not trained:
            raise UnsupportedModelError(f"{self.name} finds nothing to train in {type(self.model).__name__}")
        self.add_state("params", {name: source.detach().clone().requires_grad_() for name, source in trained.items()})
        self.optimizer = self._optimizer(list(self.params.values()))
        start_state(self.optimizer)
        self.add_state("averages", {name: self.optimizer.state[tensor] for name, tensor in self.params.items()})
        self._batch_norm = ModuleSwap(self.model, {layer: adaptive_norm(layer) for _, layer in norm_layers(self.model)})

    # ---- running

    def _check_model(self) -> None:
        super()._check_model()
        name, mine = next(iter(self.params.items()))
        source = self.model.get_parameter(name)
        if (source.dtype, source.device) != (mine.dtype, mine.device):
            raise ModelChangedError(
                f"the model is now {source.dtype} on {source.device}, what {self.name} trains is {mine.dtype} on "
                f"{mine.device}: make a new adapter"
            )

    def forward(self, images: Tensor, params: Mapping[str, Tensor] | None = None) -> Tensor:
        """Logits, (B, C), of the model with other tensors than its own (by default the trained ones)."""
        with self._batch_norm, switched_off(self.model.parameters(), "requires_grad"):
            output = call_with(self.model, self.params if params is None else params, images)
        return self.keep(logits_of(output))

    def _predict(self, images: Tensor) -> Tensor:
        return self.forward(images)

    # ---- learning

    def gradients(self, loss: Tensor, params: Mapping[str, Tensor] | None = None) -> list[Tensor]:
        """The gradients of a loss with respect to tensors (by default the trained ones); zero where there is none."""
        wanted = list((self.params if params is None else params).values())
        return list(torch.autograd.grad(loss, wanted, allow_unused=True, materialize_grads=True))

    def step(self, grads: list[Tensor], batch: int) -> bool:
        """Take a step of the optimiser; one that leads to NaN or Inf is undone, in the weights and in its state.

        Args:
            grads: The gradient of each trained tensor.
            batch: Number of samples they come from, which count as skipped if no step is taken.

        Returns:
            Whether the step was taken.
        """
        if not all_finite(grads):
            self.skip(batch, "a gradient holds NaN or Inf")
            return False
        weights, group = list(self.params.values()), self.optimizer.param_groups[0]
        state = [item for tensor in weights for item in self.optimizer.state[tensor].items()]
        averages = [value for key, value in state if key != "step"]
        if stays_in_range(group, largest([*grads, *weights, *averages]), weights[0].dtype):
            self._step(grads)
            return True
        written = [*weights, *(value for _, value in state)]
        before = [tensor.detach().clone() for tensor in written]
        if rate(group) < torch.finfo(weights[0].dtype).max:  # torch takes no other
            self._step(grads)
            if all_finite(averages) and largest(weights) < limit(weights[0].dtype):
                return True
        for tensor, old in zip(written, before, strict=True):
            tensor.copy_(old)
        self.skip(batch, f"a step of {self.name} leads out of the range of numbers (is lr={group['lr']:g} too large?)")
        return False

    def _step(self, grads: list[Tensor]) -> None:
        for tensor, grad in zip(self.params.values(), grads, strict=True):
            tensor.grad = grad
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def take_steps(
        self, images: Tensor, objective: Callable[[Tensor, Tensor], Objective | None]
    ) -> tuple[Tensor, bool]:
        """Predict a batch and take the option's number of `steps` on it; one that leads to NaN or Inf changes nothing.

        Args:
            images: (B, 3, H, W).
            objective: From images and their logits, (B, C), to the objective; None if there is nothing to learn.

        Returns:
            The logits of the last pass before its step, and whether the batch could be learnt from.
        """
        for _ in range(int(getattr(self.options, "steps", 1))):
            with torch.enable_grad():
                logits = self.forward(images)
                if not self.usable(logits):
                    return logits.detach(), False
                wanted = objective(images, logits)
                if wanted is None:
                    break
                grads = self.gradients(wanted.loss)
            if not self.step(grads, len(logits)):
                return logits.detach(), False
            wanted.commit()
        return logits.detach(), True


class SeededAdapter(GradientAdapter[S]):
    """A method that trains, with a random generator of its own."""

    generator: torch.Generator

    @abstractmethod
    def _learn(self, images: Tensor) -> tuple[Tensor, bool]:
        """Predict a batch and learn from it. Returns logits, (B, C), and whether the batch could be learnt from."""

    def _start(self) -> None:
        super()._start()
        self.add_state("generator", torch.Generator().manual_seed(self.options.seed))

    def _adapt(self, images: Tensor) -> Tensor:
        before = self.generator.get_state()
        logits, learnt = self._learn(images)
        if learnt:
            self.watch(logits)
        else:  # a bad batch must not affect later draws either
            self.generator.set_state(before)
        return logits


# ---- models and tensors


def call_with(model: nn.Module, params: Mapping[str, Tensor], inputs: Inputs) -> Any:
    """Call a model with other tensors than its own."""
    if isinstance(inputs, Tensor):
        return functional_call(model, dict(params), (inputs,))
    return functional_call(model, dict(params), (), dict(inputs))


def norm_affine(model: nn.Module, wanted: Callable[[str], bool] = lambda name: True) -> dict[str, nn.Parameter]:
    """Scale and shift of a model's norm layers, by name; `wanted` chooses layers by their names."""
    layers = {module for name, module in model.named_modules() if isinstance(module, NORM_LAYERS) and wanted(name)}
    return weights_and_biases(model, lambda module, key: module in layers)


def weights_and_biases(
    model: nn.Module, wanted: Callable[[nn.Module, str], bool] = lambda module, key: True
) -> dict[str, nn.Parameter]:
    """The parameters called `weight` or `bias` that are wanted, by name; a shared one is listed once."""
    names: dict[nn.Parameter, str] = {}
    for name, module in model.named_modules():
        for key, parameter in module.named_parameters(recurse=False):
            if key in ("weight", "bias") and wanted(module, key):
                names.setdefault(parameter, f"{name}.{key}" if name else key)
    return {name: parameter for parameter, name in names.items()}


def largest(tensors: list[Tensor]) -> float:
    """The largest magnitude in any of the tensors; NaN if there is one."""
    ends = [end for tensor in tensors if tensor.numel() for end in tensor.detach().aminmax()]
    return float(torch.stack(ends).abs().max()) if ends else 0.0


def all_finite(tensors: list[Tensor]) -> bool:
    """Whether no number in any of the tensors is NaN or Inf."""
    return math.isfinite(largest(tensors))


@torch.no_grad()
def move_towards(weights: Mapping[str, Tensor], goal: Mapping[str, Tensor], share: float) -> None:
    """Move tensors, in place, by a share of the way to those of the same names."""
    for name, tensor in weights.items():
        tensor.lerp_(goal[name].detach(), share)


# ---- optimisers


def make_optimizer(kind: str, params: list[Tensor], options: Options) -> torch.optim.Optimizer:
    """Adam or SGD, by name, with those of its settings that a method has as options."""
    adam = kind == "adam"
    names = ("lr", "betas", "eps", "weight_decay") if adam else ("lr", "momentum", "nesterov", "weight_decay")
    settings = {name: value for name, value in options.given().items() if name in names}
    return torch.optim.Adam(params, **settings) if adam else torch.optim.SGD(params, **settings)


def start_state(optimizer: torch.optim.Optimizer) -> None:
    """Create the state that the optimiser would create at its first step, so that it can be saved and loaded."""
    for group in optimizer.param_groups:
        for tensor in group["params"]:
            state: dict[str, Any] = {}
            if isinstance(optimizer, torch.optim.Adam):
                state["step"] = torch.zeros((), dtype=torch.float32)
                state["exp_avg"] = torch.zeros_like(tensor, requires_grad=False)
                state["exp_avg_sq"] = torch.zeros_like(tensor, requires_grad=False)
            elif group.get("momentum"):
                state["momentum_buffer"] = torch.zeros_like(tensor, requires_grad=False)
            optimizer.state[tensor] = state


def rate(group: Mapping[str, Any]) -> float:
    """The largest factor by which Adam or SGD may multiply a direction; it is largest at Adam's first step."""
    return float(group["lr"]) / (1 - float(group.get("betas", (0.0, 0.0))[0]))


def limit(dtype: torch.dtype) -> float:
    """The magnitude above which weights are useless, since the product of two overflows."""
    return math.sqrt(torch.finfo(dtype).max)


def stays_in_range(group: Mapping[str, Any], magnitude: float, dtype: torch.dtype) -> bool:
    """Whether a step of Adam or SGD certainly stays in range, so that no copies are needed to undo it.

    `magnitude` is the largest of gradients, weights and moving averages.
    """
    direction = (3 + 2 * float(group["weight_decay"])) * max(1.0, magnitude)  # with decay, momentum and looking ahead
    # Below the root of the largest number, so that Adam can square the direction.
    return direction * (1 + rate(group) / float(group.get("eps", 1.0))) < limit(dtype)

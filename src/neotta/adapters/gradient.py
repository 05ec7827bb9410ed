"""The base of methods that train: tensors of their own, and an optimiser whose state can be saved."""

from __future__ import annotations

import contextlib
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from neotta.adapters._optimizers import limit, rate, start_state, stays_in_range
from neotta.adapters._safety import GuardedAdapter
from neotta.errors import ModelChangedError, OptionError, StateMismatchError, UnsupportedModelError
from neotta.neo.find_head import logits_of
from neotta.neo.head_views import embeddings_of, layer_of
from neotta.neo.model_inputs import Inputs
from neotta.neo.module_swap import ModuleSwap
from neotta.neo.norms import adaptive_norm, norm_layers
from neotta.options import Options

O = TypeVar("O", bound=Options)  # noqa: E741

NORM_LAYERS = (nn.LayerNorm, nn.BatchNorm2d, nn.GroupNorm)


class GradientAdapter(GuardedAdapter[O]):
    """A method that trains some tensors of the model.

    The trained tensors are copies that replace the model's own during a call; the model keeps the source weights, from
    which `reset` starts. BatchNorm layers normalise with the current batch.
    """

    params: dict[str, Tensor]
    optimizer: torch.optim.Optimizer

    @abstractmethod
    def _trained(self) -> dict[str, nn.Parameter]:
        """The parameters of the model that are trained, by name."""

    @abstractmethod
    def _optimizer(self, params: list[Tensor]) -> torch.optim.Optimizer:
        """A fresh optimiser."""

    def _start(self) -> None:
        if self.head.weight.dtype.itemsize < 4:
            raise UnsupportedModelError(
                f"{self.name} trains the model, for which {self.head.weight.dtype} is too coarse: use float32"
            )
        trained = self._trained()
        if not trained:
            raise UnsupportedModelError(f"{self.name} finds nothing to train in {type(self.model).__name__}")
        self.params = {name: source.detach().clone().requires_grad_() for name, source in trained.items()}
        self.optimizer = self._optimizer(list(self.params.values()))
        start_state(self.optimizer)
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
        with self._batch_norm, frozen(self.model):
            output = call_with(self.model, self.params if params is None else params, images)
        return self.keep(logits_of(output))

    def forward_with_embeddings(
        self, images: Tensor, params: Mapping[str, Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """As `forward`, but returns embeddings, (B, d), and logits, (B, C)."""
        with self._batch_norm, frozen(self.model):
            chosen = self.params if params is None else params
            embeddings, logits = forward_with_embeddings(self.model, self.head, images, chosen)
        return embeddings, self.keep(logits)

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

    # ---- the state

    def configure(self, **changes: Any) -> None:
        """Change options in the middle of a stream; what was learnt is kept.

        Raises:
            OptionError: An option is unknown or wrong, or does not fit what was learnt so far.
        """
        before, learnt = self.options, self.state_dict()
        super().configure(**changes)
        try:
            self._resume(learnt)
        except (OptionError, StateMismatchError, UnsupportedModelError) as error:
            self.options = before
            self._resume(learnt)
            if isinstance(error, OptionError):
                raise
            raise OptionError(
                f"{', '.join(changes)} cannot change in the middle of a stream of {self.name}: make a new adapter"
            ) from None

    def _resume(self, state: Mapping[str, Tensor]) -> None:
        """Start again with the current options, and continue from a state."""
        with torch.inference_mode(False), torch.no_grad():
            self._start()
        self.load_state_dict(state)

    def _state(self) -> dict[str, Tensor]:
        state = {f"params/{name}": tensor.detach() for name, tensor in self.params.items()}
        for name, tensor in self.params.items():
            for key, value in self.optimizer.state[tensor].items():
                state[f"optimizer/{name}/{key}"] = value
        return state


def forward_with_embeddings(
    model: nn.Module, head: nn.Module, images: Tensor, params: Mapping[str, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Run a model once; gradients flow through both results where they are enabled.

    Args:
        model: The classifier.
        head: Its linear head, such as `neotta.split(model).head`.
        images: A batch that the model takes.
        params: Tensors to use instead of the model's own, by name.

    Returns:
        Embeddings, (B, d), and logits, (B, C).
    """
    seen: list[Tensor] = []
    hook = layer_of(head).register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    try:
        output = call_with(model, params or {}, images)
    finally:
        hook.remove()
    return embeddings_of(head, seen[-1]), logits_of(output)


def call_with(model: nn.Module, params: Mapping[str, Tensor], inputs: Inputs) -> Any:
    """Call a model with other tensors than its own."""
    if isinstance(inputs, Tensor):
        return functional_call(model, dict(params), (inputs,))
    return functional_call(model, dict(params), (), dict(inputs))


def norm_affine(model: nn.Module, wanted: Callable[[str], bool] = lambda name: True) -> dict[str, nn.Parameter]:
    """Scale and shift of a model's norm layers, by name; `wanted` chooses layers by their names."""
    return {
        f"{name}.{key}" if name else key: parameter
        for name, module in model.named_modules()
        if isinstance(module, NORM_LAYERS) and wanted(name)
        for key, parameter in module.named_parameters(recurse=False)
        if key in ("weight", "bias")
    }


def weights_and_biases(
    model: nn.Module, wanted: Callable[[nn.Module, str], bool] = lambda module, key: True
) -> dict[str, nn.Parameter]:
    """The parameters called `weight` or `bias` that are wanted, by name; a shared one is listed once."""
    found: dict[nn.Parameter, str] = {}
    for name, module in model.named_modules():
        for key, parameter in module.named_parameters(recurse=False):
            if key in ("weight", "bias") and wanted(module, key):
                found.setdefault(parameter, f"{name}.{key}" if name else key)
    return {name: parameter for parameter, name in found.items()}


def entropy(logits: Tensor) -> Tensor:
    """Entropy of the softmax of each row, (B, C) to (B,), in nats."""
    log = logits.log_softmax(dim=1)
    return -(log.exp() * log).sum(dim=1)


def largest(tensors: list[Tensor]) -> float:
    """The largest magnitude in any of the tensors; NaN if there is one."""
    ends = [end for tensor in tensors if tensor.numel() for end in tensor.detach().aminmax()]
    return float(torch.stack(ends).abs().max()) if ends else 0.0


def all_finite(tensors: list[Tensor]) -> bool:
    """Whether no number in any of the tensors is NaN or Inf."""
    return math.isfinite(largest(tensors))


@contextlib.contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Exclude the model's own parameters from the graph."""
    live = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in live:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in live:
            parameter.requires_grad_(True)

"""Surgeon: train all layers, but store only the activations that matter.

Paper: Ma et al., "SURGEON: Memory-Adaptive Fully Test-Time Adaptation via Dynamic Activation Sparsity", CVPR 2025.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field, Strict
from torch import Tensor, nn
from torch.nn import functional

from neotta.adapters._methods import register
from neotta.adapters.augment import AugmentingAdapter, AugmentingOptions
from neotta.adapters.declaration import Declaration
from neotta.adapters.gradient import Betas, Epsilon, LearningRate, WeightDecay, make_optimizer, weights_and_biases
from neotta.adapters.losses import EntropyMargin, cross_entropy, entropy, entropy_margin, surer_weigh_more
from neotta.errors import UnsupportedModelError
from neotta.neo.module_swap import ModuleSwap
from neotta.options import named

Quirk = Literal["positional_alignment", "stale_gradients"]


class SurgeonOptions(AugmentingOptions):
    presets: ClassVar = {"original": {"lr": 5e-6}}

    lr: LearningRate = 1e-5
    betas: Betas = (0.9, 0.999)
    eps: Epsilon = 1e-8
    weight_decay: WeightDecay = 0.0
    margin: EntropyMargin | None = Field(
        None, description="Samples of higher entropy are not learnt from; None is 0.4 ln C for C classes."
    )
    consistency: float = Field(
        0.01, ge=0, description="Weight, per class, of the loss between images and their augmented view."
    )
    importance_samples: int = Field(10, ge=1, description="Number of images of a batch by which layers are ranked.")
    compat: Annotated[tuple[Quirk, ...], Strict(False), named("surgeon")] = Field(
        (),
        description='Mistakes of the reference code to reproduce. "positional_alignment" takes the i-th parameter for '
        'that of the i-th pruned layer, so that later layers are not trained. "stale_gradients" adds the gradients of '
        "earlier batches, since the last reset, to those that rank the layers.",
    )


@register
class Surgeon(AugmentingAdapter[SurgeonOptions]):
    """Entropy and consistency over all weights, with pruned activations in linear layers and convolutions.

    The biases of linear layers and of pruned convolutions are not trained, nor are tokens and position embeddings. A
    single convolution, the patch embedding of a transformer, is trained without pruning.
    """

    name = "surgeon"
    title = "Surgeon"
    paper = "SURGEON: Memory-Adaptive Fully Test-Time Adaptation via Dynamic Activation Sparsity, CVPR 2025"
    declaration = Declaration(
        needs="images", pixels=True, gradients=True, normalisation=True, random=True, forward_passes=3
    )
    Options = SurgeonOptions

    layers: list[tuple[str, PrunedLayer]]
    """The layers that prune and the names of their weights, in the order of the model."""
    _watched: dict[str, Tensor]
    """Tensors that are not trained, but whose gradients the reference code uses."""
    stale: dict[str, Tensor]
    """Gradients that the reference code forgets to clear."""

    def _trained(self) -> dict[str, nn.Parameter]:
        pruned: set[nn.Module] = set(prunable_layers(self.model))
        return weights_and_biases(
            self.model,
            lambda module, key: key == "weight" or not (isinstance(module, nn.Linear) or module in pruned),
        )

    def _optimizer(self, params: list[Tensor]) -> torch.optim.Optimizer:
        return make_optimizer("adam", params, self.options)

    def _start(self) -> None:
        super()._start()
        stand_ins: dict[nn.Module, PrunedLayer] = {layer: pruned_layer(layer) for layer in prunable_layers(self.model)}
        if not stand_ins:
            raise UnsupportedModelError(
                f"surgeon needs plain linear layers or convolutions, and {type(self.model).__name__} has none"
            )
        names: dict[Tensor, str] = {parameter: name for name, parameter in self._trained().items()}
        self.layers = [(names[layer.weight], layer) for layer in stand_ins.values()]
        self._pruning = ModuleSwap(self.model, stand_ins)
        self._watched = {}
        self.add_state("stale", {})
        if "positional_alignment" in self.options.compat:
            biases = {layer.bias for _, layer in self.layers}
            self._watched = {
                name: parameter.detach().requires_grad_()
                for name, parameter in self.model.named_parameters()
                if name not in self.params and parameter not in biases
            }
        if "stale_gradients" in self.options.compat:
            every = {**self.params, **self._watched}
            self.stale.update({name: torch.zeros_like(each, requires_grad=False) for name, each in every.items()})

    def _learn(self, images: Tensor) -> tuple[Tensor, bool]:
        ranking = self._ranking(images[self._importance_rows(len(images))])
        self._prune(self._importances(ranking))
        ranking = {name: grad for name, grad in ranking.items() if name in self._watched}  # the others are large
        with torch.enable_grad():
            logits = self._pruned(images)
            if not self.usable(logits):
                return logits.detach(), False
            loss = self._loss(logits, self._pruned(self.view(images)))
            tensors = {**self.params, **self._watched}
            values = torch.autograd.grad(loss, list(tensors.values()), allow_unused=True, materialize_grads=True)
        grads = dict(zip(tensors, values, strict=True))
        if not self.step([grads[name] for name in self.params], len(images)):
            return logits.detach(), False
        for name, stale in self.stale.items():
            if name not in self._watched:
                stale.copy_(grads[name])
            elif name in ranking:  # unknown to the optimiser, which therefore never clears it
                torch.add(ranking[name], grads[name], out=stale)
        return logits.detach(), True

    def _pruned(self, images: Tensor) -> Tensor:
        """Logits, (B, C), of the adapted model; its layers remember what their ratios allow."""
        with self._pruning:
            return self.forward(images, {**self.params, **self._watched})

    def _loss(self, logits: Tensor, view: Tensor) -> Tensor:
        """Entropy of the reliable samples, the surer the more it weighs, and consistency with a view; all (B, C)."""
        margin = entropy_margin(self.options.margin, self.num_classes)
        uncertainty = entropy(logits)
        reliable = uncertainty.detach() < margin
        weight = torch.where(reliable, surer_weigh_more(uncertainty, margin), 0.0)
        disagreement = cross_entropy(view, logits).mean()
        reliable_loss = (uncertainty * weight).sum() / max(int(reliable.sum()), 1)
        return reliable_loss + self.options.consistency * self.num_classes * disagreement

    # ---- which layers matter

    def _importance_rows(self, count: int) -> Tensor:
        return torch.randperm(count, generator=self.generator)[: self.options.importance_samples]

    def _ranking(self, images: Tensor) -> dict[str, Tensor]:
        """Gradients by which the layers are ranked: of the entropy of a few images, without pruning."""
        for _, layer in self.layers:
            layer.ratio, layer.elements = 0.0, 0
        tensors = {name: self.params[name] for name, _ in self.layers}
        if "positional_alignment" in self.options.compat:
            both = {**self.params, **self._watched}
            tensors = {name: both[name] for name, _ in self.model.named_parameters() if name in both}
        with torch.enable_grad():
            loss = entropy(self._pruned(images)).mean()
            values = torch.autograd.grad(loss, list(tensors.values()), allow_unused=True)
        return {
            name: grad + self.stale[name] if self.stale else grad
            for name, grad in zip(tensors, values, strict=True)
            if grad is not None
        }

    def _importances(self, ranking: dict[str, Tensor]) -> dict[str, float]:
        """How much each layer matters, by the name of its weight: a large gradient for a small cache."""
        caches = [(name, layer.elements) for name, layer in self.layers if name in ranking and layer.elements]
        total = sum(size for _, size in caches)
        if "positional_alignment" in self.options.compat:
            caches = [(name, size) for name, (_, size) in zip(ranking, caches)]  # noqa: B905 - as far as both go
        return {
            name: float(ranking[name].norm()) / math.sqrt(ranking[name].numel()) * math.log(total / size)
            for name, size in caches
        }

    def _prune(self, importances: dict[str, float]) -> None:
        """Let each layer store its input in proportion to its importance; all of it, if they cannot be ranked."""
        top = max(importances.values(), default=0.0)
        ranked = top > 0 and all(map(math.isfinite, importances.values()))
        for name, layer in self.layers:
            layer.ratio = 1 - importances.get(name, 0.0) / top if ranked else 0.0


# ---- layers that store only the largest entries of their input


class PrunedLinear(nn.Linear):
    """A linear layer whose weight gradient is computed from the largest entries of its input.

    Output and gradient by the input are exact; the bias gets no gradient. Make one with `pruned_layer`.
    """

    ratio: float  # the share of the input that is discarded, from 0 to 1
    elements: int  # number of input elements since it was last set to 0

    def forward(self, input: Tensor) -> Tensor:
        """Multiply and add; input (..., in), output (..., out)."""
        self.elements += input.numel()
        return _Multiply.apply(input, self.weight, self.bias, self.ratio)  # type: ignore[no-any-return, no-untyped-call]


class PrunedConv2d(nn.Conv2d):
    """A convolution whose weight gradient is computed from the largest entries of its input; see `PrunedLinear`."""

    ratio: float
    elements: int

    def forward(self, input: Tensor) -> Tensor:
        """Convolve; input (B, in, H, W), output (B, out, h, w)."""
        self.elements += input.numel()
        shape = (self.stride, self.padding, self.dilation, self.groups)
        return _Convolve.apply(input, self.weight, self.bias, self.ratio, shape)  # type: ignore[no-any-return, no-untyped-call]


PrunedLayer = PrunedLinear | PrunedConv2d


def pruned_layer(layer: nn.Linear | nn.Conv2d) -> PrunedLayer:
    """Make the replacement of a layer; it shares the layer's parameters and hooks."""
    kind: type[PrunedLayer] = PrunedLinear if isinstance(layer, nn.Linear) else PrunedConv2d
    new = kind.__new__(kind)
    new.__dict__.update(layer.__dict__, _parameters=layer._parameters.copy(), ratio=0.0, elements=0)
    return new


def prunable_layers(model: nn.Module) -> list[nn.Linear | nn.Conv2d]:
    """The plain linear layers and convolutions of a model with a weight of their own, in the model's order.

    A single convolution is the patch embedding of a transformer, which is left alone as in the recorded runs.
    """
    convolutions = sum(isinstance(module, nn.Conv2d) for module in model.modules())
    kinds = (nn.Linear, nn.Conv2d) if convolutions > 1 else (nn.Linear,)
    return [module for module in model.modules() if isinstance(module, kinds) and _is_plain(module)]


def _is_plain(module: nn.Linear | nn.Conv2d) -> bool:
    kind = nn.Linear if isinstance(module, nn.Linear) else nn.Conv2d
    padded = isinstance(module, nn.Conv2d) and (module.padding_mode != "zeros" or isinstance(module.padding, str))
    return type(module).forward is kind.forward and "weight" in module._parameters and not padded


def prune(input: Tensor, ratio: float) -> tuple[Tensor, Tensor]:
    """Keep the entries of largest magnitude: of n, the floor(n (1 - ratio)) largest.

    Returns:
        Their values and indices (int32) in the flattened tensor, (k,) each. Where that takes no less memory than the
        tensor itself: the tensor with zeros for the others, and no indices.
    """
    count, no_indices = math.floor(input.numel() * (1 - ratio)), input.new_empty(0, dtype=torch.int32)
    if count >= input.numel():
        return input, no_indices
    flat = input.flatten()
    indices = flat.abs().topk(count, sorted=False).indices.int()
    values = flat.index_select(0, indices)
    if values.nbytes + indices.nbytes >= input.nbytes:
        return unpruned(values, indices, input.shape), no_indices
    return values, indices


def unpruned(values: Tensor, indices: Tensor, shape: torch.Size) -> Tensor:
    """The tensor that `prune` was given, with zeros for what it dropped."""
    if values.shape == shape:
        return values
    return values.new_zeros(shape.numel()).index_copy_(0, indices.long(), values).view(shape)


class _Multiply(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None, ratio: float) -> Tensor:
        ctx.shape = input.shape
        ctx.save_for_backward(weight, *prune(input, ratio))
        return functional.linear(input, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor, None, None]:
        weight, values, indices = ctx.saved_tensors
        grad = grads[0].to(weight.dtype)  # they differ under autocast
        input = unpruned(values, indices, ctx.shape).to(weight.dtype)
        by_weight = grad.reshape(-1, len(weight)).T @ input.reshape(-1, ctx.shape[-1])
        return grad @ weight if ctx.needs_input_grad[0] else None, by_weight, None, None


class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None, ratio: float, shape: Any) -> Tensor:
        ctx.input_shape, ctx.shape = input.shape, shape
        ctx.save_for_backward(weight, *prune(input, ratio))
        return functional.conv2d(input, weight, bias, *shape)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        weight, values, indices = ctx.saved_tensors
        grad = grads[0].to(weight.dtype)  # they differ under autocast
        input = unpruned(values, indices, ctx.input_shape).to(weight.dtype)
        stride, padding, dilation, groups = ctx.shape
        by_input, by_weight, _ = torch.ops.aten.convolution_backward(
            grad, input, weight, None, stride, padding, dilation, False, [0, 0], groups,
            [*ctx.needs_input_grad[:2], False],
        )  # fmt: skip
        return by_input, by_weight, None, None, None

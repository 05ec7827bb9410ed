"""Surgeon: train all layers, but store only the activations that matter.

Paper: Ma et al., "SURGEON: Memory-Adaptive Fully Test-Time Adaptation via Dynamic Activation Sparsity", CVPR 2025.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field, Strict
from torch import Tensor, nn

from neotta.adapters._augmenting import AugmentingAdapter, AugmentingOptions
from neotta.adapters._methods import register
from neotta.adapters._optimizers import Betas, Epsilon, LearningRate, WeightDecay, make_optimizer
from neotta.adapters._pruned import PrunedLayer, prunable_layers, pruned_layer
from neotta.adapters.declaration import Declaration
from neotta.adapters.gradient import entropy, weights_and_biases
from neotta.errors import OptionError, UnsupportedModelError
from neotta.neo.module_swap import ModuleSwap
from neotta.options import named

Quirk = Literal["positional_alignment", "stale_gradients"]


class SurgeonOptions(AugmentingOptions):
    """Options of Surgeon."""

    presets: ClassVar = {"original": {"lr": 5e-6}}

    lr: LearningRate = 1e-5
    betas: Betas = (0.9, 0.999)
    eps: Epsilon = 1e-8
    weight_decay: WeightDecay = 0.0
    margin: Annotated[float, Field(ge=0)] | None = Field(
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
        needs="images",
        pixels=True,
        gradients=True,
        normalisation=True,
        random=True,
        forward_passes=3,
    )
    Options = SurgeonOptions

    layers: list[tuple[str, PrunedLayer]]
    """The layers that prune and the names of their weights, in the order of the model."""
    _watched: dict[str, Tensor]
    """Tensors that are not trained, but whose gradients the reference code uses."""
    _stale: dict[str, Tensor]
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
        self._watched, self._stale = {}, {}
        if "positional_alignment" in self.options.compat:
            biases = {layer.bias for _, layer in self.layers}
            self._watched = {
                name: parameter.detach().requires_grad_()
                for name, parameter in self.model.named_parameters()
                if name not in self.params and parameter not in biases
            }
        if "stale_gradients" in self.options.compat:
            every = {**self.params, **self._watched}
            self._stale = {name: torch.zeros_like(tensor, requires_grad=False) for name, tensor in every.items()}

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
            found = torch.autograd.grad(loss, list(tensors.values()), allow_unused=True, materialize_grads=True)
        grads = dict(zip(tensors, found, strict=True))
        if not self.step([grads[name] for name in self.params], len(images)):
            return logits.detach(), False
        for name, stale in self._stale.items():
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
        margin = 0.4 * math.log(self.num_classes) if self.options.margin is None else self.options.margin
        uncertainty = entropy(logits)
        sure = uncertainty.detach()
        weight = torch.where(sure < margin, (margin - sure).exp(), 0.0)
        reliable = int((sure < margin).sum())
        consistency = self.options.consistency * self.num_classes
        disagreement = -(logits.softmax(dim=1) * view.log_softmax(dim=1)).sum(dim=1).mean()
        return (uncertainty * weight).sum() / max(reliable, 1) + consistency * disagreement

    # ---- which layers matter

    def _importance_rows(self, count: int) -> Tensor:
        """Which images of a batch rank the layers, (at most `importance_samples`,)."""
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
            found = torch.autograd.grad(loss, list(tensors.values()), allow_unused=True)
        return {
            name: grad + self._stale[name] if self._stale else grad
            for name, grad in zip(tensors, found, strict=True)
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

    def configure(self, **changes: Any) -> None:
        """Change options in the middle of a stream."""
        if self.options.changed(self.name, **changes).compat != self.options.compat:
            raise OptionError("compat cannot change in the middle of a stream: make a new adapter")
        super().configure(**changes)

    def _state(self) -> dict[str, Tensor]:
        return {**super()._state(), **{f"stale/{name}": tensor for name, tensor in self._stale.items()}}

"""Batch normalisation with the statistics of the incoming data instead of the stored ones (NEO-BN).

It is right for mixed classes in batches of about 64. Where a batch shows few classes, its statistics are those of the
classes, and normalising with them erases what was to be recognised. A ResNet-20 with batches of 16 falls from 90.2 % to
70.2 % on clean images sorted by class, from 86.1 % to 27.8 % on one class, from 88.9 % to 11.1 % on one class in fog.
"""

from __future__ import annotations

import functools
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.nn.modules.batchnorm import _BatchNorm

from neotta._warning import warn
from neotta.errors import UnsupportedModelError
from neotta.neo.context import adapts_in_graph, is_paused

Statistics = Literal["batch", "ema"]

UNIT = 16  # images that have the weight `momentum` in a moving average
SMALL_BATCH = 16  # below so many images their own statistics were measured to cost accuracy on clean data
FEW_CLASSES = 2  # so many in a batch of at least `SMALL_BATCH` are too few: its statistics are those of the classes


class AdaptiveNorm(_BatchNorm):
    """A BatchNorm layer that normalises with the current batch, or with a moving average of batches.

    It shares the learned scale and shift, and the stored statistics, with the layer it replaces; the latter stay in the
    `state_dict` but are neither used nor changed.

    `"ema"` starts at the stored statistics and moves while `adapting`: 16 images have the weight `momentum`, however
    they are split into batches, and the variance includes that between batches, so that batches of one work. `"batch"`
    needs large batches: the first small one warns. A batch with a single value per channel is normalised with the
    stored statistics, with one warning.

    Create it with `adaptive_norm`: its class derives from the layer's own, so that layers which do more than normalise
    (timm's norm + activation) still do so.
    """

    statistics: Statistics
    momentum_: float
    adapting: bool
    warns: bool
    _fallback: bool
    _warned: bool

    @property
    def running_mean(self) -> Tensor | None:  # type: ignore[override]
        """The mean that the layer's forward pass uses, (channels,)."""
        return self._in_use("running_mean")

    @property
    def running_var(self) -> Tensor | None:  # type: ignore[override]
        """The variance that the layer's forward pass uses, (channels,)."""
        return self._in_use("running_var")

    def _in_use(self, name: str) -> Tensor | None:
        if self.statistics == "batch" and not self._fallback:
            return None
        used = self._buffers[name if self._fallback else f"ema_{name}"]
        # The moving average is kept in float32 at least, and the model may have been converted.
        return used if used is None or self.weight is None else used.to(self.weight.dtype)

    def forward(self, input: Tensor) -> Tensor:
        """Normalise; input and output (B, channels, ...)."""
        values = input.numel() // max(input.shape[1], 1)
        if self.statistics == "ema":
            if self.adapting and values > 1 and (is_compiling() or not is_paused(self)):
                self._move(input.detach())
        elif values <= 1:
            return self._stored(input)
        elif self.warns and not is_compiling() and 0 < input.shape[0] < SMALL_BATCH:
            self.warns = False
            warn(
                f"neo-bn normalises with the statistics of {input.shape[0]} images: below {SMALL_BATCH} this costs "
                "accuracy; use larger batches, or the moving average, statistics='ema'"
            )
        return super().forward(input)

    @torch.no_grad()
    def _move(self, input: Tensor) -> None:
        dims = [0, *range(2, input.dim())]
        variance, mean = torch.var_mean(input.float() if input.dtype.itemsize < 4 else input, dims, unbiased=False)
        old_mean, old_variance = self._buffers["ema_running_mean"], self._buffers["ema_running_var"]
        if old_mean is None or old_variance is None:
            return
        share: Any = 1 - (1 - self.momentum_) ** (input.shape[0] / UNIT)
        if is_compiling():
            share = share * adapts_in_graph(old_mean, self)
        mean, variance = mean.to(old_mean.dtype), variance.to(old_variance.dtype)
        step = mean - old_mean
        moved = torch.lerp(old_variance, variance, share) + share * (1 - share) * step**2  # of both together
        finite = torch.isfinite(step).all() & torch.isfinite(variance).all()
        # Without branching in Python, so that the layer can be compiled.
        old_mean.copy_(torch.where(finite, old_mean + share * step, old_mean))
        old_variance.copy_(torch.where(finite, moved, old_variance))

    def _stored(self, input: Tensor) -> Tensor:
        if input.numel() and not self._warned:
            self._warned = True
            warn("a batch with one value per channel has no statistics: using the stored ones of this BatchNorm layer")
        self._fallback = True
        try:
            return super().forward(input)
        finally:
            self._fallback = False

    def __reduce_ex__(self, protocol: Any) -> Any:
        # The class is created at run time: pickle its base class, and how to derive from it.
        return _blank, (type(self).__bases__[1],), self.__dict__

    @torch.no_grad()
    def reset(self) -> None:
        """Reset to the stored statistics."""
        for name in ("running_mean", "running_var"):
            moving, stored = self._buffers.get(f"ema_{name}"), self._buffers[name]
            if moving is not None and stored is not None:
                moving.copy_(stored)

    def moving(self) -> dict[str, Tensor]:
        """The buffers that change while adapting; none for `"batch"`."""
        return {name: buffer for name, buffer in self.named_buffers() if name.startswith("ema_")}


def warned_of_few_classes(logits: Tensor) -> bool:
    """Warn if the predictions of a batch, (B, C), are of too few classes for its statistics; whether they are."""
    batch, classes = logits.shape
    if batch < SMALL_BATCH or classes <= FEW_CLASSES:
        return False
    few = len(set(logits.detach().argmax(1).tolist())) <= FEW_CLASSES
    if few:
        warn(
            "neo-bn got a batch of one or two classes, by its predictions, and normalises the class away: it is right "
            "for mixed classes in batches of 64; for other streams use the default, neotta.adapt(model)"
        )
    return few


def adaptive_norms(model: nn.Module, statistics: Statistics, momentum: float) -> dict[str, AdaptiveNorm]:
    """Create the replacements of all BatchNorm layers of a model, by name; the first one warns of small batches."""
    layers = norm_layers(model)
    if not layers:
        raise UnsupportedModelError(f"neo-bn needs BatchNorm layers, and {type(model).__name__} has none: use 'neo'")
    return {
        name: adaptive_norm(layer, statistics, momentum, warns=place == 0) for place, (name, layer) in enumerate(layers)
    }


def adaptive_norm(
    layer: _BatchNorm, statistics: Statistics = "batch", momentum: float = 0.1, *, warns: bool = False
) -> AdaptiveNorm:
    """Create the replacement of a BatchNorm layer; it shares the layer's parameters, buffers and hooks."""
    own = {"statistics": statistics, "momentum_": momentum, "warns": warns}
    new: AdaptiveNorm = stand_in(layer, AdaptiveNorm, **own, adapting=True, _fallback=False, _warned=False)
    if statistics == "ema":
        with torch.inference_mode(False):  # tensors created in inference mode cannot be updated outside it
            for name in ("running_mean", "running_var"):
                stored: Any = layer._buffers[name]
                wide = stored.to(torch.promote_types(stored.dtype, torch.float32), copy=True)
                new.register_buffer(f"ema_{name}", wide, persistent=False)
    return new


def stand_in(layer: _BatchNorm, base: type[_BatchNorm], **attributes: Any) -> Any:
    """Create a layer of class `base` that shares another's parameters, buffers and hooks, and does all that it does."""
    own: Any = type(layer)
    before: Any = base
    kind = _derived(own, before)
    new = kind.__new__(kind)
    new.__dict__.update(layer.__dict__)
    for name in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
        new.__dict__[name] = layer.__dict__[name].copy()
    new.__dict__.update(training=False, **attributes)
    return new


@functools.cache
def _derived(kind: Any, base: Any) -> Any:
    return type(f"Adaptive{kind.__name__}", (base, kind), {})


def _blank(kind: Any) -> Any:
    derived = _derived(kind, AdaptiveNorm)
    return derived.__new__(derived)


def norm_layers(model: nn.Module) -> list[tuple[str, _BatchNorm]]:
    """The BatchNorm layers of a model that keep statistics, by name."""
    return [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) and module._buffers.get("running_mean") is not None
    ]

"""Validation of heads: only plain linear layers and 1x1 convolutions can be re-centered."""

from __future__ import annotations

from torch import nn

from neotta.errors import HeadNotFoundError
from neotta.neo.head import NEOHead
from neotta.neo.head_views import Head, is_pointwise

AT_LOGITS = "neotta.adapt(model, at='logits') re-centers the output itself, whatever the head is"


def linear_layer(model: nn.Module, name: str, module: nn.Module) -> Head:
    """Return the module if it is a plain linear layer or a 1x1 convolution, or raise an error that says why not."""
    where = f"head {name!r} of {type(model).__name__} is"
    if (around := wrapping(module)) is not None:
        raise HeadNotFoundError(f"{where} {around}")
    if isinstance(module, nn.Conv2d) and is_pointwise(module):
        reason = _reparametrized(module)
        if reason is None:
            return module
        raise HeadNotFoundError(f"{where} {reason}")
    if not isinstance(module, nn.Linear):
        inside = [sub for sub, child in module.named_modules() if isinstance(child, nn.Linear)]
        hint = f"name the layer with head='{name}.{inside[-1]}'" if inside else AT_LOGITS
        raise HeadNotFoundError(f"{where} a {type(module).__name__}, not a Linear: {hint}")
    if (reason := _unusual(module)) is not None:
        raise HeadNotFoundError(f"{where} {reason}")
    return module


def wrapping(module: nn.Module) -> str | None:
    """Describe the wrapper that hides the weights of a linear layer, if there is one."""
    kind = f"{type(module).__module__}.{type(module).__name__}".lower()
    if not isinstance(module, nn.Linear) and "quantized" in kind:
        return f"quantized ({type(module).__name__}): adapt and fold before quantizing"
    if not isinstance(module, nn.Linear) and ("lora" in kind or "peft" in kind):
        return f"wrapped by LoRA ({type(module).__name__}): merge it first (merge_and_unload)"
    return None


def _unusual(module: nn.Linear) -> str | None:
    """Explain why a linear layer is more than its weight and bias, if it is."""
    if (reason := _reparametrized(module)) is not None:
        return reason
    if "forward" in module.__dict__:
        return "a layer whose forward was replaced (as accelerate does): remove that first"
    kind = type(module)
    plain = kind.forward is nn.Linear.forward or isinstance(module, NEOHead)
    # timm's Linear only differs from nn.Linear when scripted.
    if not plain and not (kind.__module__.startswith("timm.layers") and kind.__name__ == "Linear"):
        full = f"{kind.__module__}.{kind.__qualname__}"
        return f"a {full} with a custom forward: neotta re-centers plain Linear layers"
    return None


def _reparametrized(module: nn.Module) -> str | None:
    """Explain why the weight of a layer is not a plain parameter, if it is not."""
    if nn.utils.parametrize.is_parametrized(module):
        return "parametrized: remove its parametrizations first"
    weight = module._parameters.get("weight")
    if weight is None:
        return "recomputed in each call (weight_norm, spectral_norm or pruning): remove that from the layer first"
    if isinstance(weight, nn.parameter.UninitializedParameter):
        return "lazy and has no weight yet: run the model once first"
    return None

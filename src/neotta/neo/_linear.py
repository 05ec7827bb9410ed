"""Which layers can be re-centered: linear ones that are a weight and a bias and nothing else."""

from __future__ import annotations

from torch import nn

from neotta.errors import HeadNotFoundError
from neotta.neo.head import NEOHead


def linear_layer(model: nn.Module, name: str, module: nn.Module) -> nn.Linear:
    """The module as a linear layer that can be re-centered, or a clear refusal."""
    where = f"head {name!r} of {type(model).__name__} is"
    if (around := wrapping(module)) is not None:
        raise HeadNotFoundError(f"{where} {around}")
    if not isinstance(module, nn.Linear):
        inside = [sub for sub, child in module.named_modules() if isinstance(child, nn.Linear)]
        hint = f": name the layer with head='{name}.{inside[-1]}'" if inside else ""
        raise HeadNotFoundError(f"{where} a {type(module).__name__}, not a Linear{hint}")
    if (reason := _unusual(module)) is not None:
        raise HeadNotFoundError(f"{where} {reason}")
    return module


def wrapping(module: nn.Module) -> str | None:
    """What is wrapped around a linear layer that hides its weights."""
    kind = f"{type(module).__module__}.{type(module).__name__}".lower()
    if not isinstance(module, nn.Linear) and "quantized" in kind:
        return f"quantized ({type(module).__name__}): adapt and fold before quantizing"
    if not isinstance(module, nn.Linear) and ("lora" in kind or "peft" in kind):
        return f"wrapped by LoRA ({type(module).__name__}): merge it first (merge_and_unload)"
    return None


def _unusual(module: nn.Linear) -> str | None:
    """Why a linear layer is more than its weight and bias."""
    if nn.utils.parametrize.is_parametrized(module):
        return "parametrized: remove its parametrizations first"
    weight = module._parameters.get("weight")
    if weight is None:
        return "computed anew in each call (weight_norm, spectral_norm or pruning): remove that from the layer first"
    if isinstance(weight, nn.parameter.UninitializedParameter):
        return "lazy and has no weight yet: run the model once before"
    if "forward" in module.__dict__:
        return "a layer whose forward was replaced (as accelerate does): take that out first"
    kind = type(module)
    plain = kind.forward is nn.Linear.forward or isinstance(module, NEOHead)
    # timm's own Linear casts when scripted and is a plain one otherwise.
    if not plain and not (kind.__module__.startswith("timm.layers") and kind.__name__ == "Linear"):
        full = f"{kind.__module__}.{kind.__qualname__}"
        return f"a {full}, which computes in a way of its own: neotta re-centers plain Linear layers"
    return None

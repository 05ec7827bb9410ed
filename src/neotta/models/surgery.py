"""NEO in the place of a model's linear head: put it in, look at it, fold it, take it out again."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from neotta.batchnorm import AdaptiveNorm, adaptive_norm, norm_layers
from neotta.errors import (
    AlreadyAdaptedError,
    ModelError,
    NotAdaptedError,
    OptionError,
    UnknownMethodError,
    UnsupportedModelError,
)
from neotta.models.heads import find_heads
from neotta.neo import VARIANTS, NEOHead
from neotta.options import Options
from neotta.swap import Keep, Swap, give_back

Model = TypeVar("Model", bound=nn.Module)


# What a folded layer stands in for. It is noted here and not in the layer, which is to be a plain one.
_FOLDED: WeakKeyDictionary[nn.Module, nn.Module] = WeakKeyDictionary()


class Adaptation(NamedTuple):
    """What `adapt` was asked for; every stand-in remembers it, and the module it stands in for."""

    method: str
    options: Options


def adapt(
    model: Model,
    method: str = "neo",
    *,
    head: str | Sequence[str] | None = None,
    example: Tensor | None = None,
    **options: Any,
) -> Model:
    """Make a classifier adapt to the images it meets: NEO takes the place of its linear head.

    The same model object comes back; from then on every call adapts and predicts. A model adapted in the same way
    already is left as it is, with its state.

    Args:
        model: A classifier of timm, Hugging Face or torchvision, or any module that ends in a linear layer.
        method: `"neo"`, `"neo-continual"`, `"neo-mse"` or `"neo-bn"`.
        head: The name of the linear layer (or several), if it cannot be found.
        example: A batch of images to run the model with, if that is what it takes to find the head.
        **options: The method's options, such as `alpha=0.1` or `shrinkage="james-stein"`.

    Raises:
        HeadNotFoundError: There is no linear head, or it is of a kind that cannot be re-centered.
        AlreadyAdaptedError: The model is adapted in another way, or at another layer.
        OptionError: An option is unknown or wrong.
    """
    check_module(model)
    if method not in VARIANTS:
        raise _not_a_variant(method)
    asked = Adaptation(method, VARIANTS[method].make(method, options))
    present = _present(model)
    if present:
        if head is not None and set(find_heads(model, head).values()) != set(heads(model).values()):
            raise AlreadyAdaptedError(
                f"the model is adapted at {', '.join(heads(model))} already, not at {head}: neotta.restore(model) first"
            )
        now = _adaptation(present[0])
        if now != asked:
            raise AlreadyAdaptedError(
                f"the model is adapted with {now.method} ({now.options}) already: neotta.restore(model) first"
            )
        return model
    norms = _norm_pairs(model, asked.options) if method == "neo-bn" else {}
    pairs: dict[nn.Module, nn.Module] = {**norms}
    for linear in find_heads(model, head, example).values():
        neo = NEOHead.variant(linear, method, asked.options)
        neo.followers = [Keep(norm) for norm in norms.values()]
        pairs[linear] = neo
    for old, new in pairs.items():
        new.__dict__["_adaptation"] = asked
        new.__dict__["_original"] = Keep(old)
    Swap(model, pairs).do()
    return model


def check_module(model: Any) -> None:
    """Refuse what is no module, with a hint for what `load_model` returns."""
    if not isinstance(model, nn.Module):
        inner = isinstance(getattr(model, "model", None), nn.Module)
        hint = ": give its .model" if inner else ", which is no torch.nn.Module"
        raise ModelError(f"a model was expected, got {type(model).__name__}{hint}")


def _not_a_variant(method: str) -> OptionError | UnknownMethodError:
    from neotta.adapters.registry import methods  # they need this module

    if isinstance(method, str) and set(method.split("+")) <= set(methods()):
        return OptionError(
            f"method {method!r} is not one that lives in the head ({', '.join(VARIANTS)}): "
            f"use neotta.create({method!r}, model)"
        )
    return UnknownMethodError(str(method), VARIANTS)


def _norm_pairs(model: nn.Module, options: Options) -> dict[nn.Module, AdaptiveNorm]:
    given = options.given()
    layers = norm_layers(model)
    if not layers:
        raise UnsupportedModelError(
            f"neo-bn needs BatchNorm layers, and {type(model).__name__} has none: use neotta.adapt(model, 'neo')"
        )
    return {layer: adaptive_norm(layer, given["statistics"], given["momentum"]) for _, layer in layers}


def heads(model: nn.Module) -> dict[str, NEOHead]:
    """The NEO heads of an adapted model by name (two for a distilled model, else one).

    Raises:
        NotAdaptedError: The model has none.
    """
    check_module(model)
    found = {name: module for name, module in model.named_modules() if isinstance(module, NEOHead)}
    if not found:
        raise NotAdaptedError(f"this {type(model).__name__} is not adapted: call neotta.adapt(model) first")
    return found


def head(model: nn.Module) -> NEOHead:
    """The NEO head of an adapted model.

    Raises:
        NotAdaptedError: The model has none.
        ModelError: It has several: see `heads`.
    """
    found = heads(model)
    if len(found) > 1:
        raise ModelError(f"the model has {len(found)} heads ({', '.join(found)}): use neotta.heads(model)")
    return next(iter(found.values()))


def reset(model: nn.Module) -> None:
    """Forget everything an adapted model has learnt since `adapt`."""
    for neo in heads(model).values():
        neo.reset()


def fold(model: Model) -> Model:
    """Write the centroid into the bias, b - W c, and put a plain `nn.Linear` in the head's place.

    The model answers as before, adapts no more, and costs exactly what it cost before `adapt`. `restore` still undoes
    it, in the same process; to keep the adaptation state, `neotta.save` it first.

    Raises:
        NotAdaptedError: The model has no NEO head.
        UnsupportedModelError: NEO-BN normalises with each batch, which no fixed weights can do.
    """
    pairs = folded(model)
    for new, plain in pairs.items():
        original = _original(new)
        give_back(original, new)
        _FOLDED[plain] = original
    Swap(model, pairs).do()
    return model


def folded(model: nn.Module) -> dict[nn.Module, nn.Module]:
    """The plain layers that `fold` puts in, by the layers they stand in for; the model stays as it is."""
    found = heads(model)
    norms = [module for module in model.modules() if isinstance(module, AdaptiveNorm)]
    if any(norm.statistics == "batch" for norm in norms):
        raise UnsupportedModelError(
            "neo-bn with the statistics of the current batch cannot be folded: adapt with statistics='ema'"
        )
    pairs: dict[nn.Module, nn.Module] = {neo: neo.folded() for neo in found.values()}
    pairs.update({norm: _folded_norm(norm) for norm in norms})
    return pairs


def _folded_norm(norm: AdaptiveNorm) -> nn.Module:
    """A layer of the original kind whose stored statistics are the moving ones."""
    plain = copy.copy(_original(norm))
    plain._parameters = norm._parameters.copy()
    plain._buffers = {
        name: norm._buffers.get(f"ema_{name}", buffer) for name, buffer in norm._buffers.items() if "ema_" not in name
    }
    return plain  # type: ignore[no-any-return]


def restore(model: Model) -> Model:
    """Take everything out again: the model is, bit for bit, as if `adapt` had never been called.

    Raises:
        NotAdaptedError: The model is neither adapted nor folded (copies of a folded model cannot be restored).
    """
    check_module(model)
    pairs: dict[nn.Module, nn.Module] = {}
    for module in model.modules():
        original = module
        while (older := _original(original)) is not None:
            if original in _FOLDED:
                _follow(older, original)
            else:
                give_back(older, original)
            original = older
        if original is not module:
            pairs[module] = original
    if not pairs:
        heads(model)
    Swap(model, pairs).do()
    return model


def _follow(old: nn.Module, new: nn.Module) -> None:
    """Move a module to where its folded stand-in is now, in device and dtype; its values stay its own."""
    like = next(new.parameters())
    old.to(device=like.device, dtype=like.dtype)
    old.training = new.training


def _present(model: nn.Module) -> list[nn.Module]:
    """The stand-ins that `adapt` has put into a model."""
    return [module for module in model.modules() if "_adaptation" in module.__dict__]


def _adaptation(module: nn.Module) -> Adaptation:
    adaptation: Adaptation = module.__dict__["_adaptation"]
    return adaptation


def adaptation(model: nn.Module) -> Adaptation:
    """How a model is adapted: the method and its options."""
    heads(model)
    return _adaptation(_present(model)[0])


def _original(module: nn.Module) -> Any:
    """What a module stands in for, or None."""
    if module in _FOLDED:
        return _FOLDED[module]
    kept = module.__dict__.get("_original")
    return kept.module if kept is not None else None

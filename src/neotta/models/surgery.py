"""NEO in the place of a model's linear head: put it in, look at it, fold it, take it out again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

from torch import Tensor, nn

from neotta.batchnorm import AdaptiveNorm, adaptive_norm, norm_layers
from neotta.errors import AlreadyAdaptedError, ModelError, NotAdaptedError, UnknownMethodError, UnsupportedModelError
from neotta.models.heads import find_heads
from neotta.neo import VARIANTS, NEOHead
from neotta.options import Options
from neotta.swap import Keep, Swap, give_back

Model = TypeVar("Model", bound=nn.Module)


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
        AlreadyAdaptedError: The model is adapted in another way.
        OptionError: An option is unknown or wrong.
    """
    if method not in VARIANTS:
        raise UnknownMethodError(method, VARIANTS)
    asked = Adaptation(method, VARIANTS[method].make(method, options))
    present = _present(model)
    if present:
        now = _adaptation(present[0])
        if now != asked:
            raise AlreadyAdaptedError(
                f"the model is adapted with {now.method} ({now.options}) already: neotta.restore(model) first"
            )
        return model
    pairs: dict[nn.Module, nn.Module] = {
        linear: NEOHead.variant(linear, method, asked.options) for linear in find_heads(model, head, example).values()
    }
    if method == "neo-bn":
        pairs.update(_norm_pairs(model, asked.options))
    for old, new in pairs.items():
        new.__dict__["_adaptation"] = asked
        new.__dict__["_original"] = Keep(old)
    Swap(model, pairs).do()
    return model


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

    The model answers as before, adapts no more, and costs exactly what it cost before `adapt`. This is final; to
    keep the state, `neotta.save` it first.

    Raises:
        NotAdaptedError: The model has no NEO head.
        UnsupportedModelError: NEO-BN normalises with each batch, which no fixed weights can do.
    """
    found = heads(model)
    norms = [module for module in model.modules() if isinstance(module, AdaptiveNorm)]
    if any(norm.statistics == "batch" for norm in norms):
        raise UnsupportedModelError(
            "neo-bn with the statistics of the current batch cannot be folded: adapt with statistics='ema'"
        )
    pairs: dict[nn.Module, nn.Module] = {neo: neo.folded() for neo in found.values()}
    for norm in norms:
        plain = _original(norm)
        give_back(plain, norm)
        for name in ("running_mean", "running_var"):
            plain._buffers[name] = norm._buffers[f"ema_{name}"]
        pairs[norm] = plain
    Swap(model, pairs).do()
    return model


def restore(model: Model) -> Model:
    """Take everything out again: the model is, bit for bit, as if `adapt` had never been called.

    Raises:
        NotAdaptedError: The model has no NEO head (a folded model has none either).
    """
    heads(model)
    pairs = {module: _original(module) for module in _present(model)}
    for new, old in pairs.items():
        give_back(old, new)
    Swap(model, pairs).do()
    return model


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
    return module.__dict__["_original"].module

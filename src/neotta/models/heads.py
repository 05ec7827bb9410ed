"""Finding the linear head of a classifier: the last `nn.Linear`, whose input is the embedding."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from neotta.errors import AmbiguousHeadError, HeadNotFoundError, InputError

_PAIRS = (("head", "head_dist"), ("cls_classifier", "distillation_classifier"))
_NAMES = ("fc", "classifier", "heads.head", "heads", "head")


def find_heads(
    model: nn.Module, head: str | Sequence[str] | None = None, example: Tensor | None = None
) -> dict[str, nn.Linear]:
    """Find the head of a classifier, or the two heads of a distilled one.

    Looks, in this order, at what the caller says; at timm's `get_classifier`; at the names that Hugging Face and
    torchvision use; and last at which linear layer is executed last when the model is run.

    Args:
        model: Any classifier.
        head: The name of the layer (or names, if there are several), when the caller knows better.
        example: A batch of images to run the model with, where the head can be found in no other way.

    Returns:
        The linear layers by name.

    Raises:
        HeadNotFoundError: There is none, or the layer named is not one.
        AmbiguousHeadError: Several are possible.
    """
    if head is not None:
        names = [head] if isinstance(head, str) else list(head)
        return {name: _linear(model, name, _named(model, name)) for name in names}
    if isinstance(model, nn.Linear):
        raise HeadNotFoundError("the model is itself a Linear layer: use neotta.NEOHead.from_linear(model)")
    found = _by_convention(model)
    if found is not None:
        return found
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise HeadNotFoundError(f"{_kind(model)} has no Linear layer: neotta adapts classifiers that end in one")
    if len(linear) == 1:
        return {linear[0]: _linear(model, linear[0], model.get_submodule(linear[0]))}
    return _by_running(model, example)


def logits_of(output: Any) -> Tensor:
    """The logits in what a classifier returns: a tensor, or Hugging Face's output object, or a dict or tuple."""
    if isinstance(output, Tensor):
        return output
    logits = output.get("logits") if isinstance(output, dict) else getattr(output, "logits", None)
    if logits is None and isinstance(output, (tuple, list)) and output:
        logits = output[0]
    if not isinstance(logits, Tensor):
        raise InputError(f"the model returned {type(output).__name__}, in which no logits were found")
    return logits


def _by_convention(model: nn.Module) -> dict[str, nn.Linear] | None:
    """The head by timm's method, or by the usual names."""
    getter = getattr(model, "get_classifier", None)
    if callable(getter):
        classifier = getter()
        parts = list(classifier) if isinstance(classifier, (tuple, list)) else [classifier]
        if all(isinstance(part, nn.Identity) for part in parts):
            raise HeadNotFoundError(f"{_kind(model)} was built without a classifier (num_classes=0)")
        names = {id(module): name for name, module in model.named_modules()}
        if all(id(part) in names for part in parts):
            return dict(_descend(model, names[id(part)], part) for part in parts)
    for pair in _PAIRS:
        if all(isinstance(getattr(model, name, None), nn.Linear) for name in pair):
            return {name: _linear(model, name, getattr(model, name)) for name in pair}
    for name in _NAMES:
        module = _submodule(model, name)
        if module is not None and not isinstance(module, nn.Identity):
            return dict([_descend(model, name, module)])
    return None


def _descend(model: nn.Module, name: str, module: nn.Module) -> tuple[str, nn.Linear]:
    """The linear layer itself, or the last one inside a container."""
    if isinstance(module, nn.Linear):
        return name, _linear(model, name, module)
    inside = [(sub, child) for sub, child in module.named_modules() if isinstance(child, nn.Linear)]
    if inside and isinstance(list(module.modules())[-1], (nn.Linear, nn.Dropout, nn.Identity)):
        sub, child = inside[-1]
        return f"{name}.{sub}", _linear(model, f"{name}.{sub}", child)
    return name, _linear(model, name, module)


def _by_running(model: nn.Module, example: Tensor | None) -> dict[str, nn.Linear]:
    """The linear layers whose output is what the model returns, or else the one executed last."""
    names: dict[nn.Module, str] = {
        module: name for name, module in model.named_modules() if isinstance(module, nn.Linear)
    }
    calls: list[tuple[nn.Module, Tensor]] = []
    hooks = [
        module.register_forward_hook(lambda module, args, output: calls.append((module, output))) for module in names
    ]
    modes = [(module, module.training) for module in model.modules()]
    tries = [example] if example is not None else [_blank(model, side) for side in (224, 32)]
    output = None
    try:
        model.eval()
        with torch.no_grad():
            for images in tries:
                calls.clear()
                try:
                    output = model(images)
                except Exception as error:  # whatever the model raises: it does not take such an input
                    if example is not None:
                        raise HeadNotFoundError(f"{_kind(model)} could not be run on the example: {error}") from error
                    continue
                break
    finally:
        for hook in hooks:
            hook.remove()
        for module, mode in modes:
            module.training = mode
    if not calls:
        raise HeadNotFoundError(
            f"the head of {_kind(model)} was not recognised: name it with head='...' "
            f"(linear layers: {_some(names.values())}), or give a batch of images as example=..."
        )
    returned = {id(tensor) for tensor in _tensors(output)}
    ends = list(dict.fromkeys(names[module] for module, made in calls if id(made) in returned))
    if len(ends) > 1:
        raise AmbiguousHeadError(
            f"{_kind(model)} returns the output of several Linear layers ({_some(ends)}): "
            f"name one with head={ends[0]!r}, or all of them with head={ends}"
        )
    name = ends[0] if ends else names[calls[-1][0]]
    return {name: _linear(model, name, model.get_submodule(name))}


def _linear(model: nn.Module, name: str, module: nn.Module) -> nn.Linear:
    """The module as a linear layer that can be re-centered, or a clear refusal."""
    where = f"head {name!r} of {_kind(model)} is"
    if not isinstance(module, nn.Linear):
        inside = [sub for sub, child in module.named_modules() if isinstance(child, nn.Linear)]
        kind = f"{type(module).__module__}.{type(module).__name__}".lower()
        if "quantized" in kind:
            raise HeadNotFoundError(f"{where} quantized ({_kind(module)}): adapt and fold before quantizing")
        if "lora" in kind or "peft" in kind:
            raise HeadNotFoundError(f"{where} wrapped by LoRA ({_kind(module)}): merge it first (merge_and_unload)")
        hint = f": name the layer with head='{name}.{inside[-1]}'" if inside else ""
        raise HeadNotFoundError(f"{where} a {_kind(module)}, not a Linear{hint}")
    if nn.utils.parametrize.is_parametrized(module):
        raise HeadNotFoundError(f"{where} parametrized: remove its parametrizations first")
    if type(module).forward is not nn.Linear.forward and not hasattr(module, "centroid"):
        raise HeadNotFoundError(
            f"{where} a {_kind(module)}, which computes in a way of its own: neotta re-centers plain Linear layers"
        )
    return module


def _named(model: nn.Module, name: str) -> nn.Module:
    module = _submodule(model, name)
    if module is None:
        linear = [sub for sub, child in model.named_modules() if isinstance(child, nn.Linear)]
        raise HeadNotFoundError(f"{_kind(model)} has no layer {name!r}: its linear layers are {_some(linear)}")
    return module


def _submodule(model: nn.Module, name: str) -> nn.Module | None:
    try:
        return model.get_submodule(name)
    except AttributeError:
        return None


def _blank(model: nn.Module, side: int) -> Tensor:
    like = next(model.parameters())
    return torch.zeros(1, 3, side, side, device=like.device, dtype=like.dtype)


def _tensors(output: Any) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, dict):
        output = list(output.values())
    return [t for part in output for t in _tensors(part)] if isinstance(output, (list, tuple)) else []


def _kind(module: nn.Module) -> str:
    return type(module).__name__


def _some(names: Iterable[str], most: int = 8) -> str:
    names = list(names)
    return ", ".join(map(repr, names[-most:])) + (f" and {len(names) - most} before them" if len(names) > most else "")

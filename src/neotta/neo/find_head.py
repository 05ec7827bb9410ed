"""Find the linear head of a classifier: the last `nn.Linear`, whose input is the embedding."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from neotta.errors import AmbiguousHeadError, HeadNotFoundError, InputError, ModelError
from neotta.neo._linear import linear_layer, wrapping
from neotta.neo._trace import Trace, logits_of, trace

__all__ = ["find_heads", "joined_heads", "logits_of"]

_LIBRARIES = ("timm", "transformers", "torchvision")
_PAIRS = (
    ("head", "head_dist"),
    ("head", "dist_head"),
    ("cls_classifier", "distillation_classifier"),
    ("classifier", "classifier_distill"),
)
_NAMES = ("fc", "classifier", "heads.head", "heads", "head")


def find_heads(
    model: nn.Module, head: str | Sequence[str] | None = None, example: Tensor | None = None
) -> dict[str, nn.Linear]:
    """Find the head of a classifier, or the two heads of a distilled one.

    Models of timm, Hugging Face and torchvision are recognised by `get_classifier` and by the names of their layers.
    Other models with several linear layers, and ambiguous ones, are run once to see which layer produces the logits.

    Args:
        model: Any classifier.
        head: Name of the layer, or several names; skips the search.
        example: A batch of images. If given, the model is always run, and the run decides.

    Returns:
        The linear layers by name.

    Raises:
        HeadNotFoundError: There is no linear head, or the named layer is not one.
        AmbiguousHeadError: Several layers are possible.
    """
    check_example(example)
    if head is not None:
        given = [head] if isinstance(head, str) else list(head)
        return {name: linear_layer(model, name, _named(model, name)) for name in given}
    if isinstance(model, nn.Linear):
        raise HeadNotFoundError("the model is itself a Linear layer: use neotta.NEOHead.from_linear(model)")
    known = _of_a_library(model)
    try:
        expected = _by_convention(model)
    except ModelError:
        if known:
            raise
        expected = None
    if known and expected is not None and example is None and not _doubtful(model, expected):
        return expected
    names = _linear_layers(model)
    if len(names) == 1 and example is None:
        module, name = next(iter(names.items()))
        return {name: linear_layer(model, name, module)}
    return _by_running(model, expected, example)


def check_example(example: Any) -> None:
    """Refuse an example that is not a batch of images.

    Raises:
        InputError: It is a dictionary, as data loaders of Hugging Face give, or something else.
    """
    if example is None or isinstance(example, Tensor):
        return
    inside = [name for name, value in example.items() if isinstance(value, Tensor)] if isinstance(example, dict) else []
    hint = f": pass example=batch[{inside[0]!r}]" if inside else ""
    raise InputError(f"example must be a tensor, a batch of images, got {type(example).__name__}{hint}")


def joined_heads(model: nn.Module, example: Tensor | None = None) -> list[str]:
    """Names of the linear layers whose outputs are combined into the logits; empty if unknown."""
    try:
        return list(find_heads(model, None, example))
    except ModelError:
        names = _linear_layers(model)
        seen = _run(model, names, example)
        return [names[module] for module in seen.joined] if seen is not None and not seen.returned else []


# ---- by convention


def _of_a_library(model: nn.Module) -> bool:
    """Whether the class itself, not only a base class, is a library's, so that its names are reliable."""
    return type(_uncompiled(model)).__module__.partition(".")[0] in _LIBRARIES


def _uncompiled(model: nn.Module) -> nn.Module:
    inner = getattr(model, "_orig_mod", model)
    return inner if isinstance(inner, nn.Module) else model


def _by_convention(model: nn.Module) -> dict[str, nn.Linear] | None:
    """Find the head with `get_classifier`, or by the usual names."""
    getter = getattr(model, "get_classifier", None)
    if callable(getter):
        classifier = getter()
        parts = list(classifier) if isinstance(classifier, (tuple, list)) else [classifier]
        if all(isinstance(part, nn.Identity) for part in parts):
            raise HeadNotFoundError(f"{_kind(model)} was built without a classifier (num_classes=0)")
        names = {id(module): name for name, module in model.named_modules()}
        if all(id(part) in names for part in parts):
            return _descend(model, {names[id(part)]: part for part in parts})
    for usual in (*_PAIRS, *((name,) for name in _NAMES)):
        modules = {name: module for name in usual if (module := _submodule(model, name)) is not None}
        if len(modules) == len(usual) and not any(isinstance(module, nn.Identity) for module in modules.values()):
            return _descend(model, modules)
    return None


def _descend(model: nn.Module, modules: dict[str, nn.Module]) -> dict[str, nn.Linear]:
    """The linear layers themselves, or the last ones inside containers (all that have the same width)."""
    found: dict[str, nn.Linear] = {}
    for name, module in modules.items():
        inside = [(f"{name}.{sub}", child) for sub, child in module.named_modules() if isinstance(child, nn.Linear)]
        ends = isinstance(list(module.modules())[-1], (nn.Linear, nn.Dropout, nn.Identity))
        if isinstance(module, nn.Linear) or not inside or not ends or wrapping(module):
            found[name] = linear_layer(model, name, module)
        else:
            width = inside[-1][1].out_features
            found.update({sub: linear_layer(model, sub, child) for sub, child in inside if child.out_features == width})
    return found


def _doubtful(model: nn.Module, found: dict[str, nn.Linear]) -> bool:
    """Whether other layers may contribute to the logits, or some of these may not: only a run can tell."""
    last = next(reversed(found.values()))
    beside = [child for child in _uncompiled(model).children() if isinstance(child, nn.Linear)]
    more = any(child.out_features == last.out_features and child not in found.values() for child in beside)
    return more or len({name.partition(".")[0] for name in found}) < len(found)


# ---- by running


def _by_running(
    model: nn.Module, expected: dict[str, nn.Linear] | None, example: Tensor | None
) -> dict[str, nn.Linear]:
    """The linear layer that produces the logits, or the expected ones if they do so together."""
    names = _linear_layers(model)
    if not names:
        _by_convention(model)  # may raise a more specific error
        raise HeadNotFoundError(f"{_kind(model)} has no Linear layer: neotta adapts classifiers that end in one")
    seen = _run(model, names, example)
    if seen is None:
        return _unseen(model, names, expected)
    ends = seen.returned or seen.joined
    found = [names[module] for module in ends]
    for name in found:
        _refuse_wrapped(model, name)
    if ends and (seen.returned or not seen.bypassed):
        if expected is not None and set(expected.values()) == set(ends):
            return expected
        if len(ends) == 1:
            return {found[0]: linear_layer(model, found[0], ends[0])}
    if len(ends) > 1:
        if seen.returned:
            raise AmbiguousHeadError(
                f"{_kind(model)} returns the output of several Linear layers ({_some(found)}): "
                f"name one with head={found[0]!r}, or all of them with head={found}"
            )
        raise AmbiguousHeadError(
            f"{_kind(model)} computes its logits from several Linear layers ({_some(found)}): "
            f"if all of them should be re-centered, name them with head={found}"
        )
    _by_convention(model)
    raise HeadNotFoundError(
        f"the output of {_kind(model)} is not that of a Linear layer: if one should be re-centered anyway, "
        f"name it with head='...' (linear layers: {_some(names.values())})"
    )


def _unseen(
    model: nn.Module, names: dict[nn.Module, str], expected: dict[str, nn.Linear] | None
) -> dict[str, nn.Linear]:
    """Raise the error for a model that cannot be run on a blank image."""
    _by_convention(model)
    if expected is not None and _of_a_library(model):
        raise AmbiguousHeadError(
            f"the output of {_kind(model)} may come from several Linear layers ({_some(names.values())}): "
            f"name them, for example head={list(expected)}, or pass a batch of images as example=..."
        )
    raise HeadNotFoundError(
        f"the head of {_kind(model)} was not recognised: name it with head='...' "
        f"(linear layers: {_some(names.values())}), or pass a batch of images as example=..."
    )


def _linear_layers(model: nn.Module) -> dict[nn.Module, str]:
    return {module: name for name, module in model.named_modules() if isinstance(module, nn.Linear)}


def _run(model: nn.Module, layers: Iterable[nn.Module], example: Tensor | None) -> Trace | None:
    """Run on the example, or on a blank image of the first size that works; None if none works."""
    inner = _uncompiled(model)
    if example is not None:
        try:
            return trace(inner, layers, example)
        except Exception as error:  # whatever the model raises for such an input
            raise HeadNotFoundError(f"{_kind(model)} could not be run on the example: {error}") from error
    for images in _blanks(inner):
        try:
            return trace(inner, layers, images)
        except Exception:  # as above
            continue
    return None


def _blanks(model: nn.Module) -> list[Tensor]:
    """Blank images of the likely sizes, the one that the model declares first."""
    like = next(model.parameters())
    conv = next((module for module in model.modules() if isinstance(module, nn.Conv2d)), None)
    told = [getattr(getattr(model, "patch_embed", None), "img_size", None)]
    told.append((getattr(model, "pretrained_cfg", None) or {}).get("input_size"))
    told.append(getattr(getattr(model, "config", None), "image_size", None))
    sides = [size[-1] if isinstance(size, (tuple, list)) else size for size in told] + [224, 32]
    channels = conv.in_channels if conv is not None else 3
    return [
        torch.zeros(1, channels, side, side, device=like.device, dtype=like.dtype)
        for side in dict.fromkeys(side for side in sides if isinstance(side, int))
    ]


# ---- layers and their names


def _refuse_wrapped(model: nn.Module, name: str) -> None:
    """Raise an error if the layer is inside a wrapper of a linear layer."""
    parts = name.split(".")
    for end in range(1, len(parts)):
        parent = ".".join(parts[:end])
        if parts[end] == "base_layer" and wrapping(model.get_submodule(parent)) is not None:
            linear_layer(model, parent, model.get_submodule(parent))


def _named(model: nn.Module, name: str) -> nn.Module:
    module = _submodule(model, name)
    if module is None:
        linear = _linear_layers(model).values()
        raise HeadNotFoundError(f"{_kind(model)} has no layer {name!r}: its linear layers are {_some(linear)}")
    return module


def _submodule(model: nn.Module, name: str) -> nn.Module | None:
    try:
        return model.get_submodule(name)
    except AttributeError:
        return None


def _kind(module: nn.Module) -> str:
    return type(module).__name__


def _some(names: Iterable[str], most: int = 8) -> str:
    names = list(names)
    return ", ".join(map(repr, names[-most:])) + (f" and {len(names) - most} more" if len(names) > most else "")

"""Find the head of a classifier by the conventions of the libraries, and tell how far they can be trusted."""

from __future__ import annotations

from torch import nn

from neotta.errors import HeadNotFoundError
from neotta.neo._linear import linear_layer, wrapping
from neotta.neo.head_views import Head

_LIBRARIES = ("timm", "transformers", "torchvision")
_PAIRS = (
    ("head", "head_dist"),
    ("head", "dist_head"),
    ("cls_classifier", "distillation_classifier"),
    ("classifier", "classifier_distill"),
)
_NAMES = ("fc", "classifier", "heads.head", "heads", "head")
_POOLED_FIRST = ("ClassifierHead", "NormMlpClassifierHead", "ClNormMlpClassifierHead")
_TASKS = ("ForImageClassification", "ForVideoClassification", "ForAudioClassification", "ForSequenceClassification")
_DETECTORS = "torchvision.models.detection"
_NOT_CLASSIFIERS = (_DETECTORS, "torchvision.models.segmentation", "torchvision.models.optical_flow")


def of_a_library(model: nn.Module) -> bool:
    """Whether the class itself, not only a base class, is a library's, so that its names are reliable."""
    return type(uncompiled(model)).__module__.partition(".")[0] in _LIBRARIES


def refuse_detectors(model: nn.Module) -> None:
    """Raise an error for torchvision's models that find objects: they return boxes after thresholds, not logits."""
    kind = type(uncompiled(model))
    if kind.__module__.startswith(_DETECTORS):
        raise HeadNotFoundError(
            f"{kind.__name__} finds objects and returns those above a threshold: neotta adapts classifiers, which "
            "return the scores of all classes for every sample"
        )


def uncompiled(model: nn.Module) -> nn.Module:
    """The model inside a compiled one."""
    inner = getattr(model, "_orig_mod", model)
    return inner if isinstance(inner, nn.Module) else model


def vouched(model: nn.Module, found: dict[str, Head]) -> bool:
    """Whether a library's own structure proves that these heads return what the model returns.

    timm's `get_classifier` names the last layer, but some heads pool after it; so only a head that is the model's own
    child, or that of a container known to pool first, is trusted. Transformers' names are trusted for classifiers of
    whole samples.
    """
    inner = uncompiled(model)
    kind = type(inner)
    if not of_a_library(model) or kind.__module__.startswith(_NOT_CLASSIFIERS) or _doubtful(inner, found):
        return False
    if kind.__module__.startswith("transformers"):
        return kind.__name__.endswith(_TASKS) and all(name == "classifier" for name in found)
    parents = [inner.get_submodule(_inside(name).rpartition(".")[0]) for name in found]
    return all(
        parent is inner or isinstance(parent, nn.Sequential) or type(parent).__name__ in _POOLED_FIRST
        for parent in parents
    )


def _inside(name: str) -> str:
    return name.removeprefix("_orig_mod.")


def _doubtful(model: nn.Module, found: dict[str, Head]) -> bool:
    """Whether other layers may contribute to the logits, or some of these may not: only a run can tell."""
    sizes = {layer.out_features for layer in found.values() if isinstance(layer, nn.Linear)}
    beside = [child for child in model.children() if isinstance(child, nn.Linear)]
    more = any(child.out_features in sizes and child not in found.values() for child in beside)
    convolution = any(isinstance(layer, nn.Conv2d) for layer in found.values())
    return more or convolution or len({_inside(name).partition(".")[0] for name in found}) < len(found)


def by_convention(model: nn.Module) -> dict[str, Head] | None:
    """Find the head with `get_classifier`, or by the usual names."""
    getter = getattr(model, "get_classifier", None)
    if callable(getter):
        classifier = getter()
        parts = list(classifier) if isinstance(classifier, (tuple, list)) else [classifier]
        if all(isinstance(part, nn.Identity) for part in parts):
            raise HeadNotFoundError(f"{type(model).__name__} was built without a classifier (num_classes=0)")
        names = {id(module): name for name, module in model.named_modules()}
        if all(id(part) in names for part in parts):
            return _descend(model, {names[id(part)]: part for part in parts})
    for usual in (*_PAIRS, *((name,) for name in _NAMES)):
        modules = {name: module for name in usual if (module := submodule(model, name)) is not None}
        if len(modules) == len(usual) and not any(isinstance(module, nn.Identity) for module in modules.values()):
            return _descend(model, modules)
    return None


def _descend(model: nn.Module, modules: dict[str, nn.Module]) -> dict[str, Head]:
    """The linear layers themselves, or the last ones inside containers (all that have the same width)."""
    found: dict[str, Head] = {}
    for name, module in modules.items():
        inside = [(f"{name}.{sub}", child) for sub, child in module.named_modules() if isinstance(child, nn.Linear)]
        ends = isinstance(list(module.modules())[-1], (nn.Linear, nn.Dropout, nn.Identity))
        if isinstance(module, nn.Linear) or not inside or not ends or wrapping(module):
            found[name] = linear_layer(model, name, module)
        else:
            width = inside[-1][1].out_features
            found.update({sub: linear_layer(model, sub, child) for sub, child in inside if child.out_features == width})
    return found


def submodule(model: nn.Module, name: str) -> nn.Module | None:
    """The submodule of this name, or None."""
    try:
        return model.get_submodule(name)
    except AttributeError:
        return None

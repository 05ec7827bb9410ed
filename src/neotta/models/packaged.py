"""Models in one safetensors file that says in its metadata what it is, and a list of the models known by name."""

from __future__ import annotations

import fnmatch
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from neotta.errors import ModelLoadError, OptionError
from neotta.models._timm import create_timm, timm_package
from neotta.models._weights import Parts, Request, load_strictly, read_header, read_tensors
from neotta.models.preprocess import Preprocess

ASSETS = Path(__file__).resolve().parent.parent / "assets"
BUNDLED = {"digits": ASSETS / "digits_vit.safetensors", "mnist": ASSETS / "mnist_vit.safetensors"}
KEY = "neotta"


class Package(NamedTuple):
    """What a packaged file says of itself."""

    architecture: str  # "timm:" and the name of a model in timm's registry or of one of its classes
    kwargs: dict[str, Any]
    preprocess: Preprocess
    labels: tuple[str, ...] | None
    norm_eps: float | None  # of every LayerNorm, if it is not the architecture's own
    accuracy: float | None  # on clean test images, in 0..1
    parameters: int  # number of values in the file


def read_package(path: Path) -> Package:
    """Read the description in a packaged file, without its weights."""
    metadata, shapes = read_header(path)
    if KEY not in metadata:
        raise ModelLoadError(
            f"{path.name} has no {KEY!r} metadata that names its architecture: "
            f"load it with load_model('timm:<architecture>', checkpoint={path.name!r})"
        )
    try:
        info = json.loads(metadata[KEY])
        labels, eps, accuracy = info.get("labels"), info.get("norm_eps"), info.get("accuracy")
        return Package(
            architecture=str(info["architecture"]),
            kwargs=dict(info.get("kwargs", {})),
            preprocess=Preprocess.from_dict(info["preprocess"]),
            labels=None if labels is None else tuple(str(label) for label in labels),
            norm_eps=None if eps is None else float(eps),
            accuracy=None if accuracy is None else float(accuracy["clean"]),
            parameters=sum(math.prod(shape) for shape in shapes.values()),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ModelLoadError(
            f"the {KEY!r} metadata of {path.name} cannot be used: {type(error).__name__}: {error}"
        ) from error


def load_packaged(path: Path, request: Request) -> Parts:
    """Build the model that a packaged file describes, and fill it with the file's weights.

    Another number of classes than the file's own needs `pretrained=False`.
    """
    package = read_package(path)
    _, num_classes, preprocess, pretrained, kwargs = request
    made_with = {**package.kwargs, **kwargs}
    labels = package.labels
    if num_classes is not None:
        made_with["num_classes"] = num_classes
        labels = labels if labels is not None and len(labels) == num_classes else None
    model = _build(package.architecture, made_with, path)
    if pretrained:
        load_strictly(model, read_tensors(path), path.name)
    return Parts(model, preprocess or package.preprocess, labels, package.norm_eps)


def _build(architecture: str, kwargs: Mapping[str, Any], path: Path) -> nn.Module:
    library, _, name = architecture.partition(":")
    timm = timm_package()
    if library == "timm" and timm.is_model(name):
        return create_timm(name, kwargs)
    made_by = getattr(timm.models, name, None) if library == "timm" else None
    if not (isinstance(made_by, type) and issubclass(made_by, nn.Module)):
        raise ModelLoadError(f"{path.name} has the architecture {architecture!r}, which is unknown")
    try:
        model: nn.Module = made_by(**kwargs)
    except TypeError as error:
        raise OptionError(f"{architecture} cannot be made with these options: {error}") from error
    return model


# ---- the models that can be loaded by name


class ModelEntry(NamedTuple):
    """A model that `load_model` knows.

    Attributes:
        name: What `load_model` takes.
        size: Height and width of its input.
        classes: Number of its classes; 0 if it comes without a head.
        parameters: Number of its parameters, where the weights are at hand.
        accuracy: On clean test images, in 0..1, where it is on record.
        weights: "bundled", "published" (on the hub), or "none".
    """

    name: str
    size: tuple[int, int]
    classes: int
    parameters: int | None
    accuracy: float | None
    weights: str


def available_models(pattern: str | None = None) -> list[ModelEntry]:
    """List the bundled models; with a pattern, also timm's that match it.

    Args:
        pattern: Shell-style, such as "vit_tiny*"; with or without "timm:" before it.
    """
    entries = []
    for name, path in BUNDLED.items():
        if pattern is None or fnmatch.fnmatchcase(name, pattern):
            about = read_package(path)
            classes = len(about.labels or ())
            size, parameters, accuracy = about.preprocess.size, about.parameters, about.accuracy
            entries.append(ModelEntry(name, size, classes, parameters, accuracy, "bundled"))
    if pattern is None:
        return entries
    timm, wanted = timm_package(), pattern.removeprefix("timm:")
    for name in [each for each in timm.list_models() if fnmatch.fnmatchcase(each, wanted)]:
        config = timm.get_pretrained_cfg(name)
        _, height, width = config.input_size
        weights = "published" if config.has_weights else "none"
        entries.append(ModelEntry(f"timm:{name}", (height, width), config.num_classes, None, None, weights))
    return entries

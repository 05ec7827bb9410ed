"""The models that can be loaded by name."""

from __future__ import annotations

import fnmatch
from typing import NamedTuple

from neotta.models._timm import timm_package
from neotta.models.packaged import BUNDLED, read_package


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
    entries = [_bundled(name) for name in BUNDLED]
    if pattern is None:
        return entries
    entries = [entry for entry in entries if fnmatch.fnmatchcase(entry.name, pattern)]
    return entries + _timm_models(pattern.removeprefix("timm:"))


def _bundled(name: str) -> ModelEntry:
    package = read_package(BUNDLED[name])
    return ModelEntry(
        name=name,
        size=package.preprocess.size,
        classes=len(package.labels or ()),
        parameters=package.parameters,
        accuracy=package.accuracy,
        weights="bundled",
    )


def _timm_models(pattern: str) -> list[ModelEntry]:
    timm = timm_package()
    entries = []
    for name in timm.list_models():
        if fnmatch.fnmatchcase(name, pattern):
            config = timm.get_pretrained_cfg(name)
            _, height, width = config.input_size
            weights = "published" if config.has_weights else "none"
            entries.append(ModelEntry(f"timm:{name}", (height, width), config.num_classes, None, None, weights))
    return entries

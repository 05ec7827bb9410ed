"""Numbers printed in the paper, to stand beside measured ones. What only a figure showed is not here."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from neotta.data.opening import layout_of
from neotta.models.preprocess import Preprocess
from neotta.paper.study import Subject

SIZE, MIDDLE = (224, 224), (0.5, 0.5, 0.5)
"""The paper's models: ImageNet ViTs of timm, of this input size and normalisation."""
SHORTER_SIDE = {"resize": 256, "crop": True, "interpolation": "bilinear"}
WHOLE = {"resize": list(SIZE), "crop": False, "interpolation": "bilinear"}
PROTOCOL: dict[str, dict[str, Any]] = {
    "imagenet": SHORTER_SIDE,
    "imagenet-r": SHORTER_SIDE,
    "imagenet-sketch": SHORTER_SIDE,
    "imagenet-v2": SHORTER_SIDE,
    "cifar-10": WHOLE,
    "cifar10-c": WHOLE,
}
"""By the layout of the data. Images that have the input size already, as ImageNet-C's, are not resized at all."""


def published_preprocess(layout: str, used: Preprocess) -> dict[str, Any]:
    """The values in which the paper's preprocessing of a layout differs from what would be used."""
    if (used.size, used.mean, used.std) != (SIZE, MIDDLE, MIDDLE) or used.resize is None:
        return {}
    wanted, now = PROTOCOL.get(layout, {}), used.to_dict()
    return wanted if any(now[name] != value for name, value in wanted.items()) else {}


def in_words(used: Preprocess) -> str:
    """What is done to images: `shorter side to 256 (bilinear), the middle 224 x 224`."""
    height, width = used.size
    if isinstance(used.resize, int):
        first = f"shorter side to {used.resize} ({used.interpolation})"
    elif used.resize is not None:
        first = f"resized to {used.resize[0]} x {used.resize[1]} ({used.interpolation})"
    else:
        first = "not resized"
    return f"{first}, the middle {height} x {width}" if used.crop else first


AVERAGE = "average"
REFERENCE = "vit-base"
"""The model of the paper's main table."""
SEVERITY = 5
"""Severity of all corruptions in the paper."""
CORRUPTED = frozenset({"imagenet-c", "cifar-10-c"})
LAYOUT_NAMES = {"cifar10-c": "cifar-10-c"}
"""What data is called here, by the name of its layout."""
_TAGS = {
    "vit-small": ("vit_small_patch16_224", "augreg_in21k_ft_in1k"),
    "vit-base": ("vit_base_patch16_224", "augreg2_in21k_ft_in1k"),
    "vit-large": ("vit_large_patch16_224", "augreg_in21k_ft_in1k"),
    "resnet-50": ("resnet50", "a1_in1k"),
}
"""The paper names architectures of timm without a tag: these are the weights that timm then takes."""
IMAGENET_MODELS = {
    name: model for model, (bare, tag) in _TAGS.items() for name in (f"timm:{bare}", f"timm:{bare}.{tag}")
}
CIFAR_MODELS = {
    "hf:MF21377197/vit-small-patch16-224-finetuned-Cifar10": "vit-small",
    "hf:nateraw/vit-base-patch16-224-cifar10": "vit-base",
    "hf:tzhao3/vit-L-CIFAR10": "vit-large",
}


class Value(NamedTuple):
    """A printed number and the half-width of its interval (of ResNet-50 the deviation); None where none is printed."""

    mean: float
    half_width: float | None


@cache
def accuracies() -> dict[tuple[str, str], dict[str, dict[str, Value]]]:
    """Printed accuracies in percent by model and data, then by domain (or `average`, or `all`) and method."""
    tables: dict[tuple[str, str], dict[str, dict[str, Value]]] = {}
    text = resources.files("neotta.paper").joinpath("published.csv").read_text(encoding="utf-8")
    for row in csv.DictReader(text.splitlines()):
        model, data, domain = row.pop("model"), row.pop("data"), row.pop("domain")
        tables.setdefault((model, data), {})[domain] = {method: _value(cell) for method, cell in row.items() if cell}
    return tables


def _value(cell: str) -> Value:
    mean, _, half_width = cell.partition("±")
    return Value(float(mean), float(half_width) if half_width else None)


def match(subject: Subject) -> tuple[str, str] | None:
    """The model and data of the paper that these are, or None.

    Architecture, input size and weights have to be the paper's, not only their family; so does the severity.
    """
    layout = layout_of(subject.data) or ""
    name = LAYOUT_NAMES.get(layout, layout)
    other = subject.severity != SEVERITY and name in CORRUPTED
    if other or not _as_published(subject.model_options, layout):
        return None
    known = CIFAR_MODELS if name == "cifar-10-c" else IMAGENET_MODELS
    key = (known.get(subject.model, ""), name)
    return key if key in accuracies() else None


def imagenet_model(subject: Subject) -> str | None:
    """The paper's name of an ImageNet model with its published weights, whatever the data; None if it is another."""
    return IMAGENET_MODELS.get(subject.model) if _as_published(subject.model_options, "imagenet") else None


def _as_published(options: Mapping[str, Any], layout: str) -> bool:
    changed = {option: value for option, value in options.items() if option not in ("labels", "device")}
    prepared = dict(changed.pop("preprocess", None) or {})
    wanted = PROTOCOL.get(layout, {})
    return changed in ({}, {"pretrained": True}) and all(wanted.get(key) == value for key, value in prepared.items())

"""Numbers printed in the paper, to stand beside measured ones. What only a figure showed is not here."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from neotta.data.opening import layout_of
from neotta.paper.preprocessing import PROTOCOL

AVERAGE = "average"
REFERENCE = "vit-base"
"""The model of the paper's main table."""
SEVERITY = 5
"""Of all corruptions in the paper."""
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
    """Printed accuracies in percent by model and data, then by domain and method.

    Models are `vit-small`, `vit-base`, `vit-large` and `resnet-50`; data is `imagenet-c` (by corruption, and their
    average), `cifar-10-c` (the average), `imagenet-r` and `imagenet-sketch` (`all`).
    """
    found: dict[tuple[str, str], dict[str, dict[str, Value]]] = {}
    text = resources.files("neotta.paper").joinpath("published.csv").read_text(encoding="utf-8")
    for row in csv.DictReader(text.splitlines()):
        model, data, domain = row.pop("model"), row.pop("data"), row.pop("domain")
        found.setdefault((model, data), {})[domain] = {method: _value(cell) for method, cell in row.items() if cell}
    return found


def _value(cell: str) -> Value:
    mean, _, half_width = cell.partition("±")
    return Value(float(mean), float(half_width) if half_width else None)


def match(
    model: str, data: str, model_options: Mapping[str, Any] | None = None, severity: int = SEVERITY
) -> tuple[str, str] | None:
    """The model and data of the paper that these are, or None.

    Architecture, input size and weights have to be the paper's, not only their family; so does the severity.

    Args:
        model: What `neotta.load_model` takes.
        data: What `neotta.data.open_data` takes: a layout and its path, or a bare path to data in that layout.
        model_options: Further arguments of `neotta.load_model`.
        severity: Of the corruptions; of no meaning where there are none.
    """
    layout = layout_of(data) or ""
    name = LAYOUT_NAMES.get(layout, layout)
    if (severity != SEVERITY and name in CORRUPTED) or not _as_published(model_options or {}, layout):
        return None
    known = CIFAR_MODELS if name == "cifar-10-c" else IMAGENET_MODELS
    found = (known.get(model, ""), name)
    return found if found in accuracies() else None


def imagenet_model(model: str, model_options: Mapping[str, Any] | None = None) -> str | None:
    """The paper's name of an ImageNet model with its published weights, whatever the data; None if it is another."""
    return IMAGENET_MODELS.get(model) if _as_published(model_options or {}, "imagenet") else None


def _as_published(options: Mapping[str, Any], layout: str) -> bool:
    """Whether options leave a model with its published weights and the paper's preprocessing."""
    changed = {option: value for option, value in options.items() if option not in ("labels", "device")}
    prepared = dict(changed.pop("preprocess", None) or {})
    wanted = PROTOCOL.get(layout, {})
    return changed in ({}, {"pretrained": True}) and all(wanted.get(key) == value for key, value in prepared.items())


def reference(
    model: str, data: str, model_options: Mapping[str, Any] | None = None, severity: int = SEVERITY
) -> tuple[str, str]:
    """The model and data of the paper whose printed results are to stand beside measured ones.

    These are what `match` finds; if the paper has none like them, its main table (ViT-Base on ImageNet-C) has to serve.
    """
    return match(model, data, model_options, severity) or (REFERENCE, "imagenet-c")

"""Numbers printed in the paper, to stand beside measured ones. What only a figure showed is not here."""

from __future__ import annotations

import csv
import re
from functools import cache
from importlib import resources
from typing import NamedTuple

AVERAGE = "average"
REFERENCE = "vit-base"
"""The model of the paper's main table."""


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


def match(model: str, data: str) -> tuple[str, str] | None:
    """The model and data of the paper that these are, or None.

    Args:
        model: What `neotta.load_model` takes.
        data: What `neotta.data.open_data` takes.
    """
    known = re.search(r"vit[_-]?(small|base|large|s|b|l)[_-]|resnet[_-]?50\b", model.lower())
    layout = {"imagenet-s": "imagenet-sketch", "cifar10-c": "cifar-10-c"}
    name = data.split("=")[0].lower()
    name = layout.get(name, name)
    if known is None:
        return None
    sizes = {"s": "small", "b": "base", "l": "large"}
    size = known[1]
    found = ("resnet-50" if size is None else f"vit-{sizes.get(size, size)}", name)
    return found if found in accuracies() else None


def reference(model: str, data: str) -> tuple[tuple[str, str], bool]:
    """The printed results to put beside measured ones, and whether they are of the same model and data.

    Where the paper has none of them, its main table (ViT-Base on ImageNet-C) has to serve.
    """
    same = match(model, data)
    return (same, True) if same is not None else ((REFERENCE, "imagenet-c"), False)

"""ImageNet's 1000 classes by their WordNet ids, in the order of the outputs of every ImageNet model."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from importlib.resources import files


@functools.cache
def imagenet_wnids() -> tuple[str, ...]:
    """The 1000 WordNet ids; class 0 is `n01440764`."""
    return tuple((files("neotta") / "assets" / "imagenet_wnids.txt").read_text(encoding="utf-8").split())


def mostly_imagenets(names: Sequence[str]) -> bool:
    """Whether more than half of these folders are ImageNet's classes, so that the others are strays among them."""
    return 2 * len(set(names).intersection(imagenet_wnids())) > len(set(names))


def is_wnid(name: str) -> bool:
    """Whether a name is written as a WordNet id, such as `n01440764`."""
    return re.fullmatch(r"n\d{8}", name) is not None

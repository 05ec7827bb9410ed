"""ImageNet's 1000 classes by their WordNet ids, in the order of the outputs of every ImageNet model."""

from __future__ import annotations

import functools
from importlib.resources import files


@functools.cache
def imagenet_wnids() -> tuple[str, ...]:
    """The 1000 WordNet ids; class 0 is `n01440764`."""
    return tuple((files("neotta") / "assets" / "imagenet_wnids.txt").read_text(encoding="utf-8").split())

"""The corruptions by their families, as the paper groups them, and short names for figures."""

from __future__ import annotations

import re
from collections.abc import Sequence

FAMILIES = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    "weather": ("snow", "frost", "fog", "brightness"),
    "digital": ("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
}


def family(domain: str) -> str:
    """The family of a domain such as `"fog/5"`; empty for one that is none of the 15 corruptions."""
    kind = domain.split("/")[0]
    return next((name for name, members in FAMILIES.items() if kind in members), "")


def short_names(domains: Sequence[str]) -> dict[str, str]:
    """Names for figures: `"gaussian noise"`, with the severity only where there are several."""
    levels = {found[1] if (found := re.search(r"/([1-5])$", domain)) else "" for domain in domains}
    cut = len(levels) == 1
    return {domain: (re.sub(r"/[1-5]$", "", domain) if cut else domain).replace("_", " ") for domain in domains}

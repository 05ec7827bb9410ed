"""Words for answers, captions, axes and file names."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from neotta.evaluate.metrics import Interval, verdict

FAMILIES = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    "weather": ("snow", "frost", "fog", "brightness"),
    "digital": ("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
}
"""The corruptions as the paper groups them."""


def some(count: float, what: str) -> str:
    """`1 sample`, `2 samples`, `2 classes`."""
    return f"{count:g} {what}" if count == 1 else f"{count:g} {what}{'es' if what.endswith('s') else 's'}"


def listed(names: Sequence[str]) -> str:
    """`a, b and c`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else "none"


def points(gap: Interval) -> str:
    """`+3.1 [+2.7, +3.5] points`."""
    return f"{gap.text(1, '+')} points"


def doubt(gap: Interval) -> str:
    """What has to be added to a difference that may be chance."""
    if math.isnan(gap.half_width):
        return " (no interval)"
    return " (which may be chance)" if verdict(gap) == "can't tell" else ""


def doubted(gap: Interval) -> str:
    """`+3.1 [-0.9, +7.1] points (which may be chance)`."""
    return points(gap) + doubt(gap)


def file_name(*parts: str) -> str:
    """A name for a file: words in lower case, separated by hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", " ".join(parts).lower()).strip("-")


def family(domain: str) -> str:
    """The family of a domain such as `"fog/5"`; empty if it is none of the 15 corruptions."""
    return next((name for name, members in FAMILIES.items() if domain.split("/")[0] in members), "")


def short_names(domains: Sequence[str]) -> dict[str, str]:
    """Names for figures: `"gaussian noise"`, with the severity only if there are several."""
    levels = {found[1] if (found := re.search(r"/([1-5])$", domain)) else "" for domain in domains}
    cut = len(levels) == 1
    return {domain: (re.sub(r"/[1-5]$", "", domain) if cut else domain).replace("_", " ") for domain in domains}

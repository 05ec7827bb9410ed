"""The 15 + 4 image corruptions of ImageNet-C, for pictures of any size, and those that are added.

`corrupt` is all most people need. The functions behind it, one per corruption, take their random numbers from a `Draws`
object and their parameters one by one.
"""

from __future__ import annotations

from neotta.data.corruptions.parameters import PRESETS
from neotta.data.corruptions.registry import (
    CORRUPTIONS,
    EXTRA_CORRUPTIONS,
    SEVERITIES,
    apply,
    corrupt,
    register_corruption,
)

__all__ = ["CORRUPTIONS", "EXTRA_CORRUPTIONS", "PRESETS", "SEVERITIES", "apply", "corrupt", "register_corruption"]

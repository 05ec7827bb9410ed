"""Whether a claim of the paper holds, and words for what was measured. All verdicts on claims are made here."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Literal

from neotta.evaluate.metrics import Interval, verdict
from neotta.report.figures import display

Holds = Literal["yes", "partly", "no", "unclear", "not judged"]

NEARLY = 0.9
"""Which part of a gain is nearly all of it."""


def all_hold(verdicts: Sequence[Holds]) -> Holds:
    """One verdict for several subjects: it holds in part only if it does so somewhere."""
    if not verdicts:
        return "unclear"
    if len(set(verdicts)) == 1:
        return verdicts[0]
    return "partly" if {"yes", "partly"} & set(verdicts) else "no"


def together(parts: Sequence[Holds]) -> Holds:
    """One verdict for a claim of several parts: "partly" if one holds and another is refuted beyond chance."""
    if len(set(parts)) == 1:
        return parts[0]
    if "partly" in parts or {"yes", "no"} <= set(parts):
        return "partly"
    return "no" if "no" in parts else "unclear"


def at_once(parts: Sequence[Holds]) -> Holds:
    """One verdict for a claim that says several things of the same: refuted with any one of them."""
    return "no" if "no" in parts else "yes" if set(parts) == {"yes"} else "unclear"


def counted(outcomes: Iterable[bool]) -> Holds:
    """The verdict on facts that are true or false: whether all, some or none are as claimed."""
    facts = list(outcomes)
    return "yes" if all(facts) else "partly" if any(facts) else "no"


def gained(gap: Interval, least: float = 0.0) -> Holds:
    """Whether "it improves by more than `least`" holds, by the interval; without one it is unclear."""
    said = verdict(gap, least)
    return "yes" if said == "helps" else "no" if said == "hurts" else "unclear"


def reached(gap: Interval, published: float) -> Holds:
    """Whether there is a gain beyond chance that is not below the published one beyond chance."""
    if gap.ends[1] < published:
        return "no"
    return "yes" if verdict(gap) == "helps" else "unclear"


def nearly(part: Interval, whole: Interval) -> Holds:
    """Whether one gain is nearly all of another; unclear if either may be chance, or if their intervals overlap."""
    if math.isnan(part.half_width) or verdict(whole) == "can't tell":
        return "unclear"
    if part.mean >= NEARLY * whole.mean > 0:
        return "yes"
    return "no" if whole.mean <= 0 or part.ends[1] < whole.ends[0] else "unclear"


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


def called(name: str) -> str:
    """What a sentence calls a method or a domain: `NEO-Continual alpha=0.1`, `gaussian noise/5`."""
    return "no adaptation" if name == "none" else display(name)


def listed(names: Sequence[str]) -> str:
    """`a, b and c`; methods and corruptions by the names that figures have."""
    if not names:
        return "none"
    *others, last = map(called, names)
    return f"{', '.join(others)} and {last}" if others else last


def place_among(ahead: Sequence[str], tied: Sequence[str], first: str) -> str:
    """`number 2, after a,` or `first`, and who is level with it."""
    place = f"number {len(ahead) + 1}, after {listed(ahead)}," if ahead else first
    return place + (f"{'' if ahead else ','} level with {listed(tied)}," if tied else "")


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
    levels = {match[1] if (match := re.search(r"/([1-5])$", domain)) else "" for domain in domains}
    cut = len(levels) == 1
    return {domain: (re.sub(r"/[1-5]$", "", domain) if cut else domain).replace("_", " ") for domain in domains}

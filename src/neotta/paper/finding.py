"""What an item found, and whether the paper's claim holds. All verdicts on claims are made here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from neotta.evaluate.metrics import Interval, verdict
from neotta.report.figures import Figure
from neotta.report.grids import Table

Holds = Literal["yes", "partly", "no", "unclear"]

NEARLY = 0.9
"""Which part of a gain is nearly all of it."""


@dataclass
class Finding:
    """What an item found, filled subject by subject.

    Attributes:
        claimed: Whether the paper makes a claim about it.
        nothing: The answer if nothing could be measured.
        parts: Tables and figures, in order.
        notes: What else a reader has to know.
        said: The answers, one sentence for each subject, made from the numbers.
        verdicts: Whether the paper's claim holds, for each subject.
        seeds: Number of seeds behind it. What seems to hold in part may not with another seed, so with a single one
            it is unclear.
    """

    claimed: bool = True
    nothing: str = "Nothing could be measured."
    parts: list[Table | Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    verdicts: list[Holds] = field(default_factory=list)
    seeds: int = 2

    def say(self, answer: str, holds: Holds | None = None) -> None:
        """Answer for one subject."""
        self.said.append(answer)
        self.verdicts += [] if holds is None else [holds]

    @property
    def answer(self) -> str:
        """The answers for all subjects."""
        return " ".join(self.said) or self.nothing

    @property
    def holds(self) -> Holds | None:
        """Whether the paper's claim holds here; None if the paper makes no claim."""
        found = all_hold(self.verdicts) if self.claimed else None
        return "unclear" if found == "partly" and self.seeds < 2 else found


def all_hold(found: Sequence[Holds]) -> Holds:
    """One verdict for several subjects: it holds in part only if it does so somewhere."""
    if not found:
        return "unclear"
    if len(set(found)) == 1:
        return found[0]
    return "partly" if {"yes", "partly"} & set(found) else "no"


def together(parts: Sequence[Holds]) -> Holds:
    """One verdict for a claim of several parts.

    It holds in part if a part holds and another is refuted: what may be chance is neither. A refuted part outweighs an
    unclear one.
    """
    if len(set(parts)) == 1:
        return parts[0]
    if "partly" in parts or {"yes", "no"} <= set(parts):
        return "partly"
    return "no" if "no" in parts else "unclear"


def counted(found: Iterable[bool]) -> Holds:
    """The verdict on facts that are true or false: whether all, some or none are as claimed."""
    facts = list(found)
    return "yes" if all(facts) else "partly" if any(facts) else "no"


def gained(gap: Interval, least: float = 0.0) -> Holds:
    """Whether "it improves by more than `least`" holds, by the interval; without one it is unclear."""
    said = verdict(gap, least)
    return "yes" if said == "helps" else "no" if said == "hurts" else "unclear"


def nearly(part: Interval, whole: Interval) -> Holds:
    """Whether one gain is nearly all of another; unclear if either may be chance.

    The answer is "no" only if their intervals do not overlap.
    """
    if math.isnan(part.half_width) or verdict(whole) == "can't tell":
        return "unclear"
    if part.mean >= NEARLY * whole.mean > 0:
        return "yes"
    return "no" if whole.mean <= 0 or part.ends[1] < whole.ends[0] else "unclear"

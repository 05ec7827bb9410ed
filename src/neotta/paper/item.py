"""What an item of the paper is: a question, the runs that answer it, and what is found."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from neotta.report.grids import Grid

if TYPE_CHECKING:
    from neotta.evaluate.plan import Plan
    from neotta.paper.evidence import Evidence
    from neotta.paper.study import Setting
    from neotta.report.figures import Figure

Holds = Literal["yes", "partly", "no", "unclear"]
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Table:
    """A table of a report.

    Attributes:
        title: What it shows.
        grid: What is printed.
        data: The same as plain numbers, one dict per row, for CSV.
        caption: How to read it.
    """

    title: str
    grid: Grid
    data: Rows
    caption: str = ""


@dataclass
class Finding:
    """What an item found, filled while it goes through the subjects.

    Attributes:
        claimed: Whether the paper claims something about it.
        nothing: The answer if nothing else is said.
        parts: Tables and figures, in order.
        notes: What a reader has to know besides.
        said: The answers, one sentence for each subject, made from the numbers.
        verdicts: Whether the paper's claim holds, for each subject.
    """

    claimed: bool = True
    nothing: str = "Nothing could be measured."
    parts: list[Table | Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    verdicts: list[Holds] = field(default_factory=list)

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
        """Whether the paper's claim holds here; None where the paper claims nothing."""
        return all_hold(self.verdicts) if self.claimed else None


def all_hold(found: Sequence[Holds]) -> Holds:
    """One verdict for several subjects: it holds in part only if it does so somewhere."""
    if not found:
        return "unclear"
    if len(set(found)) == 1:
        return found[0]
    return "partly" if {"yes", "partly"} & set(found) else "no"


class Item(ABC):
    """One table or figure of the paper, or one question beyond it.

    Attributes:
        name: What the command line calls it, such as `"table-corruptions"`.
        title: A heading.
        place: Where the paper has it; empty for what is beyond it.
        question: What it asks.
        claim: What the paper says, in our words; empty for what is beyond it.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    place: ClassVar[str] = ""
    question: ClassVar[str]
    claim: ClassVar[str] = ""

    def plans(self, setting: Setting) -> list[Plan]:
        """The runs it needs of a subject; records and embeddings are shared with all other items."""
        return []

    def costs(self, setting: Setting) -> list[str]:
        """The methods whose time and memory it needs."""
        return []

    @abstractmethod
    def find(self, evidence: Evidence) -> Finding:
        """Answer the question from what was measured."""

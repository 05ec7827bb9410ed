"""What an item of the paper is: a question, the runs that answer it, and what is found."""

from __future__ import annotations

from abc import ABC, abstractmethod
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
    """What an item found.

    Attributes:
        answer: One sentence, made from the numbers.
        holds: Whether the paper's claim holds here; None where the paper claims nothing.
        parts: Tables and figures, in order.
        notes: What a reader has to know besides.
    """

    answer: str
    holds: Holds | None = None
    parts: list[Table | Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


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

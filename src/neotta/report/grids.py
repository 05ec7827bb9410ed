"""Tables of text, and comparisons as such: what every output format starts from."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from neotta.evaluate.compare import AVERAGE, difference_in, mean_in
from neotta.evaluate.estimates import METRICS

if TYPE_CHECKING:
    import pandas

Mark = Literal["", "best", "second", "failed", "helps", "hurts"]
_MARKS: dict[str | None, Mark] = {"helps": "helps", "hurts": "hurts"}
UNTESTED = "not tested"


class Entry(NamedTuple):
    text: str = "–"
    mark: Mark = ""


@dataclass(frozen=True)
class Grid:
    """A table of text: `rows` are names with one entry per column."""

    corner: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Entry, ...]], ...]

    def transposed(self) -> Grid:
        names = tuple(name for name, _ in self.rows)
        turned = zip(*(entries for _, entries in self.rows), strict=True)
        return Grid("method", names, tuple(zip(self.columns, turned, strict=True)))

    def part(self, start: int, stop: int) -> Grid:
        rows = tuple((name, entries[start:stop]) for name, entries in self.rows)
        return Grid(self.corner, self.columns[start:stop], rows)


def grid(corner: str, columns: Sequence[str], rows: Mapping[str, Sequence[str]]) -> Grid:
    """A grid of plain text: one text per column for each name."""
    return Grid(corner, tuple(columns), tuple((name, tuple(map(Entry, texts))) for name, texts in rows.items()))


@dataclass(frozen=True)
class Table:
    """A table of a report; `data` is its grid as plain numbers, one dict per row, for CSV."""

    title: str
    grid: Grid
    data: list[dict[str, Any]]
    caption: str = ""


def values(block: pandas.DataFrame) -> Grid:
    """Domains by methods: means and intervals under the same conditions, the best two of each domain marked."""
    return _grid(block, {(row.domain, row.method): _entry(row) for row in block.itertuples()})


def differences(block: pandas.DataFrame) -> Grid | None:
    """Domains by methods: differences to the baseline with their verdicts; None if there are none."""
    paired = block[block["pairs"] > 0]
    entries = {(row.domain, row.method): _difference(row) for row in paired.itertuples()}
    domains = set(paired["domain"]) | set(block["domain"][block["domain"] != AVERAGE])
    kept = block["method"].isin(paired["method"]) & block["domain"].isin(domains)
    return _grid(block[kept], entries) if entries else None


def _grid(block: pandas.DataFrame, entries: Mapping[tuple[str, str], Entry]) -> Grid:
    ran = set(block["method"])
    methods = tuple(label for label in block["method"].cat.categories if label in ran)
    rows = (
        (domain, tuple(entries.get((domain, label), Entry()) for label in methods))
        for domain in dict.fromkeys(block["domain"])
    )
    return Grid("domain", methods, tuple(rows))


def summary(block: pandas.DataFrame) -> list[str]:
    """One sentence per method: what it does on average, and in how many domains."""
    lines, paired = [], block[block["pairs"] > 0]
    for row in paired[paired["domain"] == AVERAGE].itertuples():
        mine = paired[(paired["method"] == row.method) & (paired["domain"] != AVERAGE)]
        counts = Counter(map(_said, mine.itertuples()))
        parts = ", ".join(f"{said} in {count}" for said, count in counts.most_common())
        lines.append(f"{row.method}: {_difference(row).text} on average; {parts} of {counts.total()} domains.")
    return lines


def _entry(row: Any) -> Entry:
    if not row.seeds:
        return Entry("failed", "failed") if row.failed else Entry()
    marks: dict[float, Mark] = {1: "best", 2: "second"}
    text = METRICS[row.metric].text(mean_in(row))
    return Entry(f"{text} ({row.failed} failed)" if row.failed else text, marks.get(row.rank, ""))


def _difference(row: Any) -> Entry:
    text = METRICS[row.metric].text(difference_in(row), "+")
    return Entry(text if (said := _said(row)) == UNTESTED else f"{text} {said}", _MARKS.get(row.verdict, ""))


def _said(row: Any) -> str:
    return UNTESTED if math.isnan(row.difference_low) else str(row.verdict)

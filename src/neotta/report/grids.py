"""Tables of text, and comparisons as such: what every output format starts from."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from neotta.evaluate.blocks import Block, Cell, Failure
from neotta.evaluate.metrics import NOTHING, Interval
from neotta.evaluate.verdicts import RELATIVE_ERROR, Difference, Metric

Mark = Literal["", "best", "second", "failed", "helps", "hurts"]
AVERAGE = "average"
RELATIVE = RELATIVE_ERROR.name
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


def values(block: Block, metric: Metric) -> Grid:
    """Domains by methods: means and intervals, the best and second best of each row marked."""
    rows = []
    for domain in block.domains:
        cells = [block.cells.get((domain, label), Cell()) for label in block.methods]
        marks = _ranks([cell.interval.mean for cell in cells], metric)
        rows.append((domain, tuple(_entry(cell, metric, mark) for cell, mark in zip(cells, marks, strict=True))))
    for name, means, kind in ((AVERAGE, block.average, metric), (RELATIVE, block.relative_error, RELATIVE_ERROR)):
        if means:
            row = [means.get(label, NOTHING) for label in block.methods]
            marks = _ranks([each.mean for each in row], kind)
            entries = [Entry(number(each, kind), mark) for each, mark in zip(row, marks, strict=True)]
            rows.append((name, tuple(entries)))
    return Grid("domain", block.methods, tuple(rows))


def differences(block: Block, metric: Metric) -> Grid | None:
    """Domains by methods: differences to the baseline with their verdicts; None if there are none."""
    if not block.differences:
        return None
    paired = {label for _, label in block.differences}
    methods = tuple(label for label in block.methods if label in paired)
    rows = [
        (domain, tuple(_difference(block.differences.get((domain, label)), metric) for label in methods))
        for domain in block.domains
    ]
    if block.average_differences:
        row = (block.average_differences.get(label) for label in methods)
        rows.append((AVERAGE, tuple(_difference(each, metric) for each in row)))
    return Grid("domain", methods, tuple(rows))


def summary(block: Block, metric: Metric) -> list[str]:
    """One sentence per method: what it does on average, and in how many domains."""
    lines = []
    for label, average in block.average_differences.items():
        counts = Counter(_said(difference) for (_, method), difference in block.differences.items() if method == label)
        parts = ", ".join(f"{said} in {count}" for said, count in counts.most_common())
        lines.append(f"{label}: {_difference(average, metric).text} on average; {parts} of {counts.total()} domains.")
    return lines


def failures(block: Block) -> list[str]:
    """One line per method and error: what failed, how often, and why."""
    grouped: dict[tuple[str, str], list[Failure]] = {}
    for failure in block.failures:
        grouped.setdefault((failure.method, failure.error), []).append(failure)
    lines = []
    for (method, error), runs in grouped.items():
        domains = list(dict.fromkeys(run.domain for run in runs))
        where = domains[0] if len(domains) == 1 else f"{len(domains)} domains"
        seeds = ", ".join(str(seed) for seed in sorted({run.seed for run in runs}))
        lines.append(f"{method} failed on {where} (seeds {seeds}): {error}")
    return lines


def number(interval: Interval, metric: Metric, sign: str = "") -> str:
    """`81.2 ± 0.4`, or `+1.2 [+0.1, +2.4]` for a difference; only the mean without an interval, a dash for no run."""
    return interval.text(metric.digits, sign) if interval.runs else Entry().text


def _entry(cell: Cell, metric: Metric, mark: Mark) -> Entry:
    if not cell.values:
        return Entry("failed", "failed") if cell.failed else Entry()
    text = number(cell.interval, metric)
    return Entry(f"{text} ({len(cell.failed)} failed)" if cell.failed else text, mark)


def _difference(difference: Difference | None, metric: Metric) -> Entry:
    if difference is None:
        return Entry()
    mark: Mark = "helps" if difference.verdict == "helps" else "hurts" if difference.verdict == "hurts" else ""
    text = number(difference.interval, metric, "+")
    return Entry(text if _said(difference) == UNTESTED else f"{text} {difference.verdict}", mark)


def _said(difference: Difference) -> str:
    return UNTESTED if math.isnan(difference.interval.half_width) else difference.verdict


def _ranks(means: list[float], metric: Metric) -> list[Mark]:
    shown = [round(mean, metric.digits) for mean in means]
    ranking = sorted({value for value in shown if not math.isnan(value)}, reverse=metric.better == "higher")
    if metric.better is None or len(shown) < 2:
        return [""] * len(shown)
    places: dict[float, Mark] = dict(zip(ranking, ("best", "second"), strict=False))
    return [places.get(value, "") for value in shown]

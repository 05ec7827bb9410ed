"""Numbers as rows of data, and published beside measured ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from neotta.evaluate.comparison import METRICS, Block
from neotta.evaluate.metrics import Interval
from neotta.paper.published import Value
from neotta.report import grids
from neotta.report.grids import Entry, Table, number

NOTHING = Interval(math.nan, math.nan, 0)

Rows = list[dict[str, Any]]
"""Plain numbers for CSV."""


def plain(found: Interval) -> dict[str, float | int | None]:
    """An interval for a row of data."""
    low, high = (known(end) for end in found.ends)
    return {"mean": known(found.mean), "half_width": known(found.half_width), "low": low, "high": high,
            "seeds": found.runs}  # fmt: skip


def single(value: float) -> Interval:
    """A measured number without an interval."""
    return Interval(value, math.nan, 1)


def known(value: float) -> float | None:
    """A number for a row of data: None in place of NaN."""
    return None if math.isnan(value) else value


def value_rows(block: Block) -> Rows:
    """The cells of a comparison and their averages as plain numbers."""
    found: Rows = [
        {"domain": domain, "method": label, **plain(cell.interval), "failed": len(cell.failed)}
        for (domain, label), cell in block.cells.items()
    ]
    return found + [{"domain": "average", "method": label, **plain(mean)} for label, mean in block.average.items()]


def gap_rows(block: Block) -> Rows:
    """The differences of a comparison as plain numbers."""
    averages = {("average", label): gap for label, gap in block.average_differences.items()}
    return [
        {"domain": domain, "method": label, **plain(gap.interval), "verdict": gap.verdict}
        for (domain, label), gap in {**block.differences, **averages}.items()
    ]


def beside(
    title: str,
    published: Mapping[str, float],
    measured: Mapping[str, Interval],
    *,
    corner: str = "method",
    digits: int = 1,
    sign: str = "",
    caption: str = "",
) -> Table:
    """Published and measured numbers side by side, with their difference.

    Args:
        title: Of the table.
        published: Printed numbers by name.
        measured: Measured ones by name; a name need not be in both.
        corner: What the names are.
        digits: How many decimals to show.
        sign: `"+"` for numbers that are changes.
        caption: How to read it.
    """
    metric = METRICS["top1"]._replace(digits=digits)
    shown: dict[str, tuple[str, ...]] = {}
    data: Rows = []
    for name in dict.fromkeys([*published, *measured]):
        printed, mine = published.get(name, math.nan), measured.get(name, NOTHING)
        gap = mine.mean - printed
        shown[name] = (_text(printed, digits, sign), number(mine, metric, sign), _text(gap, digits, "+"))
        row = {f"measured_{key}": value for key, value in plain(mine).items()}
        data.append({corner: name, "published": known(printed), **row, "difference": known(gap)})
    return Table(title, grids.grid(corner, ("published", "measured", "difference"), shown), data, caption)


def each_beside(
    title: str,
    published: Mapping[str, Mapping[str, Value]],
    measured: Mapping[str, Mapping[str, Interval]],
    *,
    corner: str = "domain",
    caption: str = "",
) -> Table:
    """Published and measured numbers by row and method, with their difference: `57.0 / 57.4 (+0.4)`.

    Args:
        title: Of the table.
        published: Printed numbers by row, then by method.
        measured: Measured ones by row, then by method; only rows and methods that are in both are shown.
        corner: What the rows are.
        caption: How to read it.
    """
    rows = {row: {name: value for name, value in published[row].items() if name in measured[row]}
            for row in published if row in measured}  # fmt: skip
    methods = list(dict.fromkeys(name for values in rows.values() for name in values))
    shown: dict[str, list[str]] = {}
    data: Rows = []
    for row, values in rows.items():
        shown[row] = []
        for name in methods:
            printed, half = values.get(name, (math.nan, None))
            mine = measured[row].get(name, NOTHING)
            gap = mine.mean - printed
            both = f"{_text(printed, 1, '')} / {_text(mine.mean, 1, '')}"
            shown[row].append(Entry().text if math.isnan(gap) else f"{both} ({_text(gap, 1, '+')})")
            about = {f"measured_{key}": value for key, value in plain(mine).items()}
            about = {"published": known(printed), "published_half_width": half, **about, "difference": known(gap)}
            data.append({corner: row, "method": name, **about})
    return Table(title, grids.grid(corner, methods, shown), data, caption)


def _text(value: float, digits: int, sign: str) -> str:
    return Entry().text if math.isnan(value) else f"{round(value, digits) + 0.0:{sign}.{digits}f}"

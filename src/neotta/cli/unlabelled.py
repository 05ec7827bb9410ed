"""How a report on unlabelled data is printed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from neotta._words import printable

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from neotta.evaluate.changes import PredictionChange
    from neotta.evaluate.unlabelled import UnlabelledReport

_TITLES = {"confidence": "confidence", "entropy": "entropy", "top1": "top-1 %", "ece": "ECE"}


def render_unlabelled(report: UnlabelledReport) -> Group:
    """Make what rich prints: the data, what each method changes, images to look at, and what it means."""
    from rich.console import Group, RenderableType
    from rich.text import Text

    from neotta.evaluate.explanations import explain

    parts: list[RenderableType] = [Text(report.setting), Text(), _shifts(report)]
    if report.changes:
        parts += [Text("\nWhat changes against no adaptation"), _changes(report)]
    if any(change.changed for change in report.changes):
        parts += [Text("\nClasses predicted more or less often"), _classes(report)]
        parts += [Text("\nChanged predictions to look at first: the surest disagreements"), _examples(report)]
    parts.append(Text())
    parts += [Text(line) for line in explain(report)]
    return Group(*parts)


def _shifts(report: UnlabelledReport) -> Table:
    table = _table("domain", "images", "unreadable", "mean's norm", "/ spread", "/ noise", left=1)
    for domain, unreadable in report.unreadable.items():
        shift = report.shifts.get(domain)
        found = (math.nan,) * 3 if shift is None else (shift.norm, shift.relative, shift.beyond_chance)
        images = str(0 if shift is None else shift.samples)
        _add(table, domain, images, str(len(unreadable)), *(_number(value) for value in found))
    return table


def _changes(report: UnlabelledReport) -> Table:
    shown = [name for name in _TITLES if any(_known(change, name) for change in report.changes)]
    table = _table("method", "domain", "changed", *(_TITLES[name] for name in shown))
    for change in report.changes:
        share = f"{change.changed} of {change.samples} ({change.changed / change.samples:.1%})"
        cells = (f"{_number(change.before.get(name))} → {_number(change.after.get(name))}" for name in shown)
        _add(table, change.method, change.domain, share, *cells)
    return table


def _known(change: PredictionChange, name: str) -> bool:
    return name in change.before and name in change.after


def _classes(report: UnlabelledReport) -> Table:
    table = _table("method", "domain", "class: before → after", left=3)
    for change in report.changes:
        moved = [f"{_name(report, index)}: {before} → {after}" for index, before, after in change.classes()]
        if moved:
            _add(table, change.method, change.domain, ", ".join(moved))
    return table


def _examples(report: UnlabelledReport, each: int = 5) -> Table:
    table = _table("method", "domain", "image", "before", "after")
    for change in report.changes:
        for example in change.examples[:each]:
            before = f"{_name(report, example.before)} ({example.confidence_before:.0%})"
            after = f"{_name(report, example.after)} ({example.confidence_after:.0%})"
            _add(table, change.method, change.domain, example.id, before, after)
    return table


def _add(table: Table, *cells: str) -> None:
    """Add a row of names and numbers, which may hold what rich takes for markup."""
    from rich.text import Text

    table.add_row(*(Text(printable(cell)) for cell in cells))


def _name(report: UnlabelledReport, index: int) -> str:
    return str(index) if report.names is None else report.names[index]


def _number(value: float | None) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:.2f}"


def _table(*columns: str, left: int = 2) -> Table:
    from rich.table import Column, Table

    made = [Column(name, justify="left" if place < left else "right") for place, name in enumerate(columns)]
    return Table(*made, box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))

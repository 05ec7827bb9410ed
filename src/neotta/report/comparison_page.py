"""A comparison as one HTML page: tables, and figures of dots with whiskers, on average and by domain."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from neotta.evaluate.compare import AVERAGE, difference_in, mean_in
from neotta.evaluate.estimates import METRICS
from neotta.evaluate.metrics import Interval
from neotta.report.charts import dot_chart
from neotta.report.figures import Figure
from neotta.report.formats import comparison_sheet
from neotta.report.html import render

if TYPE_CHECKING:
    import pandas

DRAWN = 8
"""Number of tables that have figures: hundreds would take minutes."""


def comparison_page(table: pandas.DataFrame, remarks: Sequence[str] = ()) -> str:
    from markupsafe import Markup

    sheet, figures = comparison_sheet(table, remarks), []
    for place, (_, block) in enumerate(table.groupby("table")):
        drawn = _figures(block, place) if place < DRAWN else ()
        figures.append([{"title": each.title, "svg": Markup(each.svg())} for each in drawn])
    notes = [f"Figures are drawn of the first {DRAWN} of {len(figures)} tables."] if len(figures) > DRAWN else []
    return render("comparison.html", sheet=sheet, figures=figures, notes=[*sheet.notes, *notes])


def _figures(block: pandas.DataFrame, place: int) -> Iterator[Figure]:
    metric, difference = METRICS[block["metric"].iloc[0]].title, f"difference to {block['baseline'].iloc[0]}"
    average, single = block[block["domain"] == AVERAGE], block[block["domain"] != AVERAGE]
    for name, rows, read, what, label in (
        ("average-difference", average, difference_in, f"Average {difference}", difference),
        ("average", average, mean_in, f"Average {metric}", metric),
        ("differences", single, difference_in, f"By domain: {difference}", difference),
        ("domains", single, mean_in, f"By domain: {metric}", metric),
    ):
        if dots := _dots(rows, read, "method" if rows is average else "domain"):
            height = 0.9 + sum(max(0.28, 0.16 * len(row)) for row in dots.values())
            chart = dot_chart(dots, label, zero=label == difference)
            yield Figure(f"{name}-{place}", what, chart, [], size=(7.0, height))


def _dots(rows: pandas.DataFrame, read: Callable[[Any], Interval], line: str) -> dict[str, dict[str, Interval]]:
    dots: dict[str, dict[str, Interval]] = {}
    for row in rows.itertuples():
        if (each := read(row)).runs:
            dots.setdefault(getattr(row, line), {})[row.method] = each
    return dots

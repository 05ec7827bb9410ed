"""A comparison as one HTML page: tables, and figures of dots with whiskers, on average and by domain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from neotta.evaluate.comparison import Block, Comparison
from neotta.evaluate.metrics import Interval
from neotta.evaluate.verdicts import Metric
from neotta.report.charts import dot_chart
from neotta.report.figures import Figure
from neotta.report.formats import comparison_sheet
from neotta.report.html import render

DRAWN = 8
"""Number of tables that have figures: hundreds would take minutes."""


def comparison_page(comparison: Comparison) -> str:
    from markupsafe import Markup

    sheet, figures = comparison_sheet(comparison), []
    for place, block in enumerate(comparison.blocks):
        drawn = _figures(block, comparison.metric, place) if place < DRAWN else ()
        figures.append([{"title": each.title, "svg": Markup(each.svg())} for each in drawn])
    count = len(comparison.blocks)
    notes = [f"Figures are drawn of the first {DRAWN} of {count} tables."] if count > DRAWN else []
    return render("comparison.html", sheet=sheet, figures=figures, notes=[*sheet.notes, *notes])


def _figures(block: Block, metric: Metric, place: int) -> Iterator[Figure]:
    average = {label: {label: mean} for label, mean in block.average.items()}
    cells, gaps = (
        {domain: {label: each.interval for label in block.methods if (each := by_place.get((domain, label)))}
         for domain in block.domains}
        for by_place in (block.cells, block.differences)
    )  # fmt: skip
    behind = {label: {label: gap.interval} for label, gap in block.average_differences.items()}
    difference = f"difference to {block.baseline}"
    for name, rows, what, label in (
        ("average-difference", behind, f"Average {difference}", difference),
        ("average", average, f"Average {metric.title}", metric.title),
        ("differences", gaps, f"By domain: {difference}", difference),
        ("domains", cells, f"By domain: {metric.title}", metric.title),
    ):
        if dots := _measured(rows):
            height = 0.9 + sum(max(0.28, 0.16 * len(row)) for row in dots.values())
            chart = dot_chart(dots, label, zero=label == difference)
            yield Figure(f"{name}-{place}", what, chart, [], size=(7.0, height))


def _measured(rows: Mapping[str, Mapping[str, Interval]]) -> dict[str, dict[str, Interval]]:
    measured = {name: {label: each for label, each in row.items() if each.runs} for name, row in rows.items()}
    return {name: row for name, row in measured.items() if row}

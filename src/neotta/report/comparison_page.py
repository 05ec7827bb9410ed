"""A comparison as one HTML page: tables, and figures of dots with whiskers, on average and by domain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from neotta.evaluate.comparison import Block, Comparison, compare
from neotta.evaluate.metrics import Interval
from neotta.evaluate.records import Record
from neotta.evaluate.verdicts import Metric
from neotta.report.charts import dot_chart
from neotta.report.figures import Figure
from neotta.report.grids import differences, failures, summary, values
from neotta.report.html import render


def comparison_page(results: Comparison | Sequence[Record], *, title: str = "Methods side by side") -> str:
    """One HTML page that needs nothing else."""
    comparison = results if isinstance(results, Comparison) else compare(results)
    blocks = [_block(block, comparison.metric, place) for place, block in enumerate(comparison.blocks)]
    return render(
        "comparison.html",
        title=title,
        metric=comparison.metric.title,
        shared=comparison.shared,
        blocks=blocks,
        notes=comparison.notes(),
    )


def _block(block: Block, metric: Metric, place: int) -> dict[str, Any]:
    from markupsafe import Markup

    figures = [{"title": each.title, "svg": Markup(each.svg())} for each in _figures(block, metric, place)]
    tables = [(metric.title, values(block, metric))]
    if (gaps := differences(block, metric)) is not None:
        tables.append((f"Difference to {block.baseline} on the same samples", gaps))
    return {
        "title": block.title,
        "sentences": summary(block, metric),
        "failures": failures(block),
        "figures": figures,
        "tables": tables,
    }


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

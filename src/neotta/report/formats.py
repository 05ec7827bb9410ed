"""Tables as Markdown, LaTeX or CSV: any grid, and whole comparisons."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

from neotta._words import one_line
from neotta.evaluate.comparison import Comparison, Difference
from neotta.evaluate.metrics import Interval
from neotta.report.grids import AVERAGE, RELATIVE, Grid, differences, failures, summary, values


def markdown(comparison: Comparison) -> str:
    """Tables in Markdown: best in bold, second best underlined."""
    parts = [f"**{comparison.metric.title}** ({comparison.shared})"]
    for block in comparison.blocks:
        if block.title:
            parts.append(f"### {block.title}")
        parts.append(markdown_table(values(block, comparison.metric)))
        if (grid := differences(block, comparison.metric)) is not None:
            parts += [f"Difference to {block.baseline} on the same samples:", markdown_table(grid)]
        parts += ["\n".join(f"- {line}" for line in summary(block, comparison.metric))]
        parts += ["\n".join(f"- {line}" for line in failures(block))]
    parts.append("\n".join(f"- {note}" for note in comparison.notes()))
    return "\n\n".join(filter(None, parts)) + "\n"


def markdown_table(grid: Grid) -> str:
    """One table in Markdown."""
    marks = {"best": "**{}**", "second": "<u>{}</u>"}
    lines = [[grid.corner, *grid.columns], ["---", *("--:" for _ in grid.columns)]]
    lines += [[name, *(marks.get(mark, "{}").format(text) for text, mark in entries)] for name, entries in grid.rows]
    return "\n".join("| " + " | ".join(one_line(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def latex(comparison: Comparison) -> str:
    """`table` environments with captions, for the package booktabs: best in bold, second best underlined."""
    parts: list[str] = []
    for block in comparison.blocks:
        where = ", ".join(filter(None, (comparison.shared, block.title)))
        parts.append(latex_table(values(block, comparison.metric), f"{comparison.metric.title} ({where})."))
        if (grid := differences(block, comparison.metric)) is not None:
            what = f"{comparison.metric.title}: difference to {block.baseline} on the same samples ({where})."
            parts.append(latex_table(grid, what))
        parts += [f"% {one_line(line)}" for line in failures(block)]
    parts += [f"% {one_line(note)}" for note in comparison.notes()]
    return "\n".join(filter(None, parts)) + "\n"


def latex_table(grid: Grid, caption: str) -> str:
    r"""One `table` environment with a caption; it needs `\usepackage{booktabs}`."""
    marks = {"best": r"\textbf{{{}}}", "second": r"\underline{{{}}}"}
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_escaped(caption)}}}",
        rf"\begin{{tabular}}{{l{'r' * len(grid.columns)}}}",
        r"\toprule",
        " & ".join(_escaped(name) for name in (grid.corner, *grid.columns)) + r" \\",
        r"\midrule",
    ]
    for name, entries in grid.rows:
        lines += [r"\midrule"] if name == AVERAGE else []
        cells = (marks.get(mark, "{}").format(_escaped(text)) for text, mark in entries)
        lines.append(" & ".join([_escaped(name), *cells]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"])


def _escaped(text: str) -> str:
    special = {"\\": r"\textbackslash{}", "±": r"$\pm$", "–": "--"}
    special.update({"~": r"\textasciitilde{}", "^": r"\textasciicircum{}"})
    special.update({each: f"\\{each}" for each in "&%$#_{}"})
    sign, text = ("$-$", text[1:]) if text.startswith("-") else ("", text)
    return sign + "".join(special.get(character, character) for character in one_line(text))


COLUMNS = ("conditions", "domain", "method", "mean", "half_width", "seeds", "failed",
           "difference", "difference_low", "difference_high", "pvalue", "verdict")  # fmt: skip


def comparison_rows(comparison: Comparison) -> list[dict[str, Any]]:
    """One row per domain and method, with all digits; None where there is no number."""
    found: list[tuple[Any, ...]] = []
    for block in comparison.blocks:
        where = ", ".join(filter(None, (comparison.shared, block.title)))
        for domain in block.domains:
            for label in block.methods:
                cell = block.cells.get((domain, label))
                if cell is not None:
                    gap = block.differences.get((domain, label))
                    found.append((where, domain, label, *_plain(cell.interval), len(cell.failed), *_gap(gap)))
        for label, mean in block.average.items():
            gap = block.average_differences.get(label)
            found.append((where, AVERAGE, label, *_plain(mean), 0, *_gap(gap)))
        for label, mean in block.relative_error.items():
            found.append((where, RELATIVE, label, *_plain(mean), 0, *_gap(None)))
    return [dict(zip(COLUMNS, row, strict=True)) for row in found]


def comma_separated(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] = COLUMNS) -> str:
    """Rows as CSV; empty where there is no number."""
    page = io.StringIO()
    writer = csv.DictWriter(page, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return page.getvalue()


def _plain(found: Interval) -> tuple[float | None, float | None, int]:
    return _known(found.mean), _known(found.half_width), found.runs


def _gap(difference: Difference | None) -> tuple[float | str | None, ...]:
    if difference is None:
        return (None,) * 5
    numbers = (difference.interval.mean, *difference.interval.ends, difference.pvalue)
    return (*map(_known, numbers), difference.verdict)


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value

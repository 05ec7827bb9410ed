"""Tables as Markdown, LaTeX, CSV or Parquet: any grid, and sheets of several, as text or as files."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from neotta._extras import need
from neotta._words import one_line
from neotta.errors import OptionError, suggestion
from neotta.evaluate.compare import AVERAGE, ESTIMATES, failures, notes
from neotta.evaluate.estimates import METRICS
from neotta.report.grids import Grid, differences, summary, values

if TYPE_CHECKING:
    import pandas

SUFFIXES = {"table": ".txt", "markdown": ".md", "latex": ".tex", "csv": ".csv", "parquet": ".parquet"}
"""What a sheet can be written as, and the suffix of its file."""
_ALIASES = {"md": "markdown", "tex": "latex", "txt": "table"}


class Section(NamedTuple):
    """Tables of the same conditions, each with what it shows if that is not the heading, and what is said of them."""

    title: str
    tables: Sequence[tuple[str, Grid]]
    lines: Sequence[str] = ()
    failures: Sequence[str] = ()


class Sheet(NamedTuple):
    """Tables to print or to write: a comparison, accuracy over time, or harm; `rows` has the plain numbers."""

    heading: str
    where: str
    sections: list[Section]
    notes: list[str]
    rows: list[dict[str, Any]]


def comparison_sheet(table: pandas.DataFrame, remarks: Sequence[str] = ()) -> Sheet:
    """A comparison as tables and notes; `remarks` are notes to begin with."""
    first, sections = table.iloc[0], []
    for _, block in table.groupby("table"):
        tables = [("", values(block))]
        if (gaps := differences(block)) is not None:
            tables.append((f"Difference to {block['baseline'].iloc[0]} on the same samples", gaps))
        sections.append(Section(block["title"].iloc[0], tables, summary(block), failures(block)))
    rows = plain_rows(table[["conditions", "domain", "method", *ESTIMATES]])
    return Sheet(METRICS[first["metric"]].title, first["shared"], sections, [*remarks, *notes(table)], rows)


def plain_rows(table: pandas.DataFrame) -> list[dict[str, Any]]:
    """Rows with all digits; None where there is no number."""
    return [
        {name: None if value != value else value for name, value in row.items()}  # NaN is not itself
        for row in table.to_dict("records")
    ]


def chosen_formats(text: str) -> list[str]:
    """The formats named in a text such as `md,latex,csv`."""
    names = []
    for word in filter(None, (each.strip().lower() for each in text.split(","))):
        name = _ALIASES.get(word, word)
        if name not in SUFFIXES:
            raise OptionError(f"a comparison has no format {word!r}: {suggestion(word, [*SUFFIXES, *_ALIASES])}")
        names.append(name)
    if not names:
        raise OptionError(f"--format takes one or more of {', '.join(SUFFIXES)}, with commas between them")
    return list(dict.fromkeys(names))


def targets(formats: Sequence[str], output: Path | None) -> dict[str, Path]:
    """The file of each format, by its suffix if there are several; none if a single one is to be printed."""
    if output is None:
        if len(formats) > 1 or "parquet" in formats:
            what = "several formats need" if len(formats) > 1 else "Parquet needs"
            raise OptionError(f"{what} a file to go to: give --output NAME")
        return {}
    if len(formats) == 1:
        return {formats[0]: output}
    stem = output.with_suffix("") if output.suffix.lower() in SUFFIXES.values() else output
    return {name: stem.with_name(stem.name + SUFFIXES[name]) for name in formats}


def markdown(sheet: Sheet) -> str:
    """Tables in Markdown: best in bold, second best underlined."""
    parts = [f"**{sheet.heading}**" + (f" ({sheet.where})" if sheet.where else "")]
    for section in sheet.sections:
        parts.append(section.title and f"### {section.title}")
        for shown, grid in section.tables:
            parts += [shown and f"{shown}:", markdown_table(grid)]
        parts += ["\n".join(f"- {line}" for line in lines) for lines in (section.lines, section.failures)]
    parts.append("\n".join(f"- {note}" for note in sheet.notes))
    return "\n\n".join(filter(None, parts)) + "\n"


def markdown_table(grid: Grid) -> str:
    marks = {"best": "**{}**", "second": "<u>{}</u>"}
    lines = [[grid.corner, *grid.columns], ["---", *("--:" for _ in grid.columns)]]
    lines += [[name, *(marks.get(mark, "{}").format(text) for text, mark in entries)] for name, entries in grid.rows]
    return "\n".join("| " + " | ".join(one_line(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def latex(sheet: Sheet) -> str:
    """`table` environments with captions, for the package booktabs: best in bold, second best underlined."""
    parts: list[str] = []
    for section in sheet.sections:
        where = ", ".join(filter(None, (sheet.where, section.title)))
        for shown, grid in section.tables:
            what = f": {shown[0].lower()}{shown[1:]}" if shown else ""
            parts.append(latex_table(grid, f"{sheet.heading}{what}{f' ({where})' if where else ''}."))
        parts += [f"% {one_line(line)}" for line in section.failures]
    parts += [f"% {one_line(note)}" for note in sheet.notes]
    return "\n".join(parts) + "\n"


def latex_table(grid: Grid, caption: str) -> str:
    r"""One `table` environment with a caption; it needs the packages booktabs, and amssymb for ✓."""
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
    special = {"\\": r"\textbackslash{}", "±": r"$\pm$", "–": "--", "✓": r"$\checkmark$", "✗": r"$\times$"}
    special.update({"~": r"\textasciitilde{}", "^": r"\textasciicircum{}"})
    special.update({each: f"\\{each}" for each in "&%$#_{}"})
    escaped = "".join(special.get(character, character) for character in one_line(text))
    return re.sub(r"(?<![\w-])-(?=\d)", "$-$", escaped)


def comma_separated(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV with the columns of all of them; empty where a row has no value."""
    page = io.StringIO()
    columns = dict.fromkeys(name for row in rows for name in row)
    writer = csv.DictWriter(page, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return page.getvalue()


def parquet_bytes(rows: Sequence[Mapping[str, Any]]) -> bytes:
    purpose = "a table in Parquet"
    arrow, parquet = need("pyarrow", purpose), need("pyarrow.parquet", purpose)
    page = io.BytesIO()
    parquet.write_table(arrow.Table.from_pylist([dict(row) for row in rows]), page, compression="zstd")
    return page.getvalue()

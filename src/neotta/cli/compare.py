"""`neotta compare`: the table of a results file."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neotta._files import write_file
from neotta._words import one_line, printable

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table

    from neotta.evaluate.records import Record
    from neotta.report.formats import Sheet
    from neotta.report.grids import Grid

_STYLES = {"best": "bold", "second": "underline", "failed": "red", "helps": "green", "hurts": "red", "": ""}
_WIDE = 10_000
HARM = (
    "Gain over the plain model in points: mean, 5th percentile and worst stream. Hurt: streams that lose over a point."
)


def compare(
    results: Annotated[list[Path], typer.Argument(help="One or more files that `neotta run` wrote.")],
    metric: Annotated[
        str, typer.Option(help="top1, top5, ece, ece_equal_mass, nll, brier, entropy, confidence.")
    ] = "top1",
    baseline: Annotated[str, typer.Option(help="The method that differences refer to.")] = "none",
    format: Annotated[
        str | None,
        typer.Option(
            help="table, md, latex, csv or parquet; several, as md,latex, go to files with the name of --output."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Write it to this file, as its ending says: .html is a page with figures to look at."
        ),
    ] = None,
    over_time: Annotated[
        bool,
        typer.Option("--over-time", help="Show accuracy batch by batch; --output may be .png, .svg or .pdf."),
    ] = False,
    harm: Annotated[
        str | None,
        typer.Option(metavar="METHOD", help="Show where this method gains and does harm, by kind of stream."),
    ] = None,
    kinds: Annotated[
        str | None, typer.Option(help="With --harm: only these orders, such as in-turn,dominant:share=0.9.")
    ] = None,
) -> None:
    """Put the methods of results side by side: means over seeds, and differences on the same samples.

    Examples:
      neotta compare results.jsonl -o page.html
      neotta compare results.jsonl --metric ece --format md,latex -o table
    """
    from neotta.cli.console import Console, next_step
    from neotta.errors import OptionError
    from neotta.evaluate.compare import compare as compare_runs
    from neotta.evaluate.plan import split_methods
    from neotta.evaluate.provenance import about_older, current, older
    from neotta.evaluate.results import Results
    from neotta.report.comparison_page import comparison_page
    from neotta.report.formats import SUFFIXES, chosen_formats, comparison_sheet, targets
    from neotta.report.over_time import over_time_report

    ending = "" if output is None else output.suffix.lower()
    by_ending = next((name for name, each in SUFFIXES.items() if each == ending), "table")
    chosen = chosen_formats(by_ending if format is None else format)
    html = output if ending == ".html" else None
    figure = output if ending in (".png", ".svg", ".pdf") else None
    files = {} if html or figure else targets(chosen, output)
    if html is not None and (over_time or format is not None):
        raise OptionError(f"{html.name} is a page, which has no --over-time and no --format")
    if figure is not None and not over_time:
        raise OptionError(f"{figure.name} is a figure, and only --over-time draws one; -o page.html has figures too")
    if over_time and metric != "top1":
        raise OptionError("--over-time shows top-1 accuracy: omit --metric")
    if harm is not None and (over_time or html is not None or (metric, baseline) != ("top1", "none")):
        raise OptionError("--harm is about top-1 accuracy against none: it goes with --kinds, --format, --output only")
    if harm is None and kinds is not None:
        raise OptionError("--kinds goes with --harm METHOD")
    records = current(read_records(results))
    if harm is not None:
        sheet = _harm(records, harm, split_methods(kinds) if kinds else [])
    else:
        found, remarks = Results(records), list[str]()
        runs = found.frame()
        table = compare_runs(runs, metric, baseline=baseline)
        if line := about_older(older(records), sum(record.measured for record in records)):
            typer.echo(f"neotta: {printable(line)}", err=True)
            remarks.append(f"{line[0].upper()}{line[1:]}.")
        remarks += found.remarks()
        sheet = comparison_sheet(table, remarks)
        if over_time:
            sheet, drawn = over_time_report(runs, table)
            if figure is not None:
                write_file(figure, drawn.written(figure.suffix[1:]))
        if html is not None:
            write_file(html, comparison_page(table, remarks))
    for name, path in files.items():
        write_file(path, _written(sheet, name))
    if output is None and chosen == ["table"]:
        console = Console(highlight=False)
        console.print(render(sheet, console.width))
    elif output is None:
        typer.echo(_written(sheet, chosen[0]), nl=False)
    next_step(f"open {html}" if html is not None else f"neotta compare {results[0]} -o page.html")


def _written(sheet: Sheet, format: str) -> str | bytes:
    from neotta.report import formats

    if format == "table":
        return _text(render(sheet, _WIDE))
    if format in ("csv", "parquet"):
        return (formats.comma_separated if format == "csv" else formats.parquet_bytes)(sheet.rows)
    return (formats.markdown if format == "markdown" else formats.latex)(sheet)


def _harm(records: Sequence[Record], method: str, kinds: Sequence[str]) -> Sheet:
    """What a method gains and costs, by kind of stream; each model and severity, and clean images, apart."""
    from neotta.evaluate.metrics import rounded
    from neotta.evaluate.stream_harm import STREAM, harm_of, summed
    from neotta.report.formats import Section, Sheet
    from neotta.report.grids import grid

    sections, gains = [], harm_of(records, method, kinds)
    for title, mine in gains.groupby("subject", sort=False):
        lines = {}
        every = dict(list(mine.groupby("kind", sort=False)))
        for kind, each in {**every, **({"all of them": mine} if len(every) > 1 else {})}.items():
            total = summed(each["gain"])
            points = [rounded(gain, 1, "+") for gain in (total["mean"], total["low"], total["worst"])]
            worst = STREAM.format_map(each.loc[each["gain"].idxmin()])
            lines[kind] = [str(total["streams"]), *points, f"{total['hurt']:.1f} %", worst]
        table = grid("kind", ("streams", "mean", "5 %", "worst", "hurt", "the worst"), lines)
        sections.append(Section(f"{method}: {title}", [("", table)]))
    rows = gains.rename(columns={"subject": "conditions"})[["conditions", "method", "kind", "domain", "seed", "gain"]]
    return Sheet("gain by kind of stream", "", sections, [HARM], rows.to_dict("records"))


def _text(shown: Group) -> str:
    """What is printed, as wide as it takes."""
    from neotta.cli.console import Console

    page = io.StringIO()
    Console(file=page, width=_WIDE, highlight=False, color_system=None).print(shown)
    return "\n".join(line.rstrip() for line in page.getvalue().splitlines()) + "\n"


def read_records(paths: list[Path]) -> list[Record]:
    """All records of files, with names that can be printed; what is damaged is left out with a warning."""
    from neotta.evaluate.results import results

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        records = results(paths).records
    for warning in caught:
        typer.echo(f"neotta: {printable(warning.message)}", err=True)
    return [shown(record) for record in records]


def shown(record: Record) -> Record:
    """A record whose names, which come from files, can be printed."""
    entries = record.entries()
    printed = _shown(entries)
    return record if printed == entries else type(record).make(printed)


def _shown(value: Any) -> Any:
    if isinstance(value, dict):
        return {one_line(name): _shown(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [_shown(entry) for entry in value]
    return one_line(value) if isinstance(value, str) else value


def render(sheet: Sheet, width: int) -> Group:
    """What rich prints of a sheet: tables that suit the width, and the notes below them."""
    from rich.console import Group
    from rich.text import Text

    where = f" ({sheet.where})" if sheet.where else ""
    parts: list[RenderableType] = [Text.assemble((sheet.heading, "bold"), where)]
    for section in sheet.sections:
        parts += [Text(), *([Text(section.title, style="bold")] if section.title else [])]
        for shown, grid in section.tables:
            parts += [*([Text(f"\n{shown}")] if shown else []), *_fitting(grid, width)]
        parts += [Text("\n".join(["", *section.lines]))] if section.lines else []
        parts += [Text(line, style="red") for line in section.failures]
    return Group(*parts, Text(), *(Text(note, style="dim") for note in sheet.notes))


def _fitting(grid: Grid, width: int) -> Iterator[Table]:
    """The tables that show a grid within a width: domains are rows where that fits, else columns, else in parts."""
    from rich.console import Console

    wide = Console(width=_WIDE)

    def fits(grid: Grid) -> bool:
        return wide.measure(_table(grid)).maximum <= width

    whole = next((each for each in (grid, grid.transposed()) if fits(each)), None)
    if whole is not None:
        yield _table(whole)
        return
    start = 0
    while start < len(grid.columns):
        stop = start + 1
        while stop < len(grid.columns) and fits(grid.part(start, stop + 1)):
            stop += 1
        yield _table(grid.part(start, stop), space=start > 0)
        start = stop


def _table(grid: Grid, *, space: bool = False) -> Table:
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0), title=" " if space else None)
    made.add_column(Text(grid.corner), no_wrap=True)
    for name in grid.columns:
        made.add_column(Text(name), justify="right")
    for name, entries in grid.rows:
        cells = (Text.assemble((entry.text, _STYLES[entry.mark])) for entry in entries)  # no style on the padding
        made.add_row(Text(name), *cells)
    return made

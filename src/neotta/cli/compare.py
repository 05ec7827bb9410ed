"""`neotta compare`: the table of a results file."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neotta._words import one_line, printable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table
    from rich.text import Text

    from neotta.evaluate.comparison import Comparison
    from neotta.evaluate.records import Record
    from neotta.report.comparison_files import Writers
    from neotta.report.grids import Grid

_STYLES = {"best": "bold", "second": "underline", "failed": "red", "helps": "green", "hurts": "red", "": ""}
_WIDE = 10_000


def compare(
    results: Annotated[list[Path], typer.Argument(help="One or more files that 'neotta run' wrote.")],
    metric: Annotated[str, typer.Option(help="top1, top5, ece, nll, entropy or confidence.")] = "top1",
    baseline: Annotated[str, typer.Option(help="The method that differences refer to.")] = "none",
    format: Annotated[
        str,
        typer.Option(
            help="table, md, latex, csv or parquet; or several, such as md,latex,csv: each goes to a file of the name "
            "given with --output, with a suffix of its own."
        ),
    ] = "table",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write it to this file.")] = None,
    over_time: Annotated[bool, typer.Option("--over-time", help="Show accuracy batch by batch.")] = False,
    figure: Annotated[Path | None, typer.Option(help="With --over-time: also draw it, to a .png or .svg file.")] = None,
    harm: Annotated[
        str | None,
        typer.Option(
            metavar="METHOD",
            help="Show where this method does harm, by kind of stream: mean gain over the plain model, worst domain, "
            "number of domains hurt. For records of the order 'real'.",
        ),
    ] = None,
    kinds: Annotated[
        str | None, typer.Option(help="With --harm: only these kinds of streams, such as 2-classes,2-in-turn.")
    ] = None,
) -> None:
    """Put the methods in RESULTS side by side: means over seeds, and differences on the same samples."""
    from neotta.cli.console import Console
    from neotta.cli.harm import show_harm
    from neotta.errors import OptionError
    from neotta.evaluate.calibration import calibration_lines
    from neotta.evaluate.comparison import compare as compare_records
    from neotta.evaluate.left_out import left_out_lines
    from neotta.evaluate.provenance import about_older, current, older
    from neotta.evaluate.tuning import tuning_lines
    from neotta.report.comparison_files import chosen_formats, targets, write_files

    chosen = chosen_formats(format)
    files = targets(chosen, output)
    if harm is not None and (over_time or figure is not None or (metric, baseline) != ("top1", "none")):
        raise OptionError("--harm is about top-1 accuracy against none: it goes with --kinds, --format, --output only")
    if harm is None and kinds is not None:
        raise OptionError("--kinds goes with --harm METHOD")
    records = current(read_records(results))
    if harm is not None:
        show_harm(records, harm, kinds, chosen, files)
        return
    found = compare_records(records, metric, baseline=baseline)
    if line := about_older(older(records), sum("metrics" in record for record in records)):
        typer.echo(f"neotta: {printable(line)}", err=True)
        found.remarks = (f"{line[0].upper()}{line[1:]}.",)
    found.remarks += (*left_out_lines(records), *calibration_lines(records), *tuning_lines(records))
    _check_over_time(found, over_time, figure)
    if figure is not None:
        _draw(found, figure)
    if files:
        write_files(files, _writers(found, over_time))
    elif chosen == ["table"]:
        Console(highlight=False).print(OverTimeView(found) if over_time else render(found))
    else:
        typer.echo(_writers(found, over_time)[chosen[0]](), nl=False)


def _writers(found: Comparison, over_time: bool) -> Writers:
    """Makes the comparison, or its accuracies over time, in every format."""
    from neotta.report import formats
    from neotta.report import over_time as batches
    from neotta.report.comparison_files import parquet_bytes

    columns: tuple[str, ...]
    if over_time:
        rows, columns = batches.comparison_rows(found), batches.COLUMNS
        texts = {name: partial(batches.text, found, name) for name in ("markdown", "latex")}
    else:
        rows, columns = formats.comparison_rows(found), formats.COLUMNS
        texts = {"markdown": partial(formats.markdown, found), "latex": partial(formats.latex, found)}
    return {
        "table": lambda: _wide(OverTimeView(found) if over_time else render(found)),
        "csv": lambda: formats.comma_separated(rows, columns),
        "parquet": lambda: parquet_bytes(rows),
        **texts,
    }


def _wide(shown: ComparisonView | OverTimeView) -> str:
    """What is printed, as wide as it takes."""
    from neotta.cli.console import Console

    page = io.StringIO()
    Console(file=page, width=_WIDE, highlight=False, color_system=None).print(shown)
    return "\n".join(line.rstrip() for line in page.getvalue().splitlines()) + "\n"


def _check_over_time(found: Comparison, over_time: bool, figure: Path | None) -> None:
    from neotta.errors import DataError, OptionError
    from neotta.evaluate.over_time import over_time as by_batch

    if figure is not None and (not over_time or figure.suffix not in (".png", ".svg")):
        raise OptionError("--figure goes with --over-time and takes the name of a .png or .svg file")
    if over_time and found.metric.name != "top1":
        raise OptionError("--over-time shows top-1 accuracy: omit --metric")
    if over_time and not any(by_batch(block) for block in found.blocks):
        raise DataError("no record says which samples were right: measure again with 'neotta run --force'")


def _draw(comparison: Comparison, path: Path) -> None:
    """Write the figure of the block with the most methods."""
    from neotta._files import atomic
    from neotta.evaluate.over_time import over_time
    from neotta.report.over_time import batches_figure

    block = max(comparison.blocks, key=lambda block: len(over_time(block)))
    drawn = batches_figure(over_time(block), title=f"Accuracy over time {block.title}".strip())
    with atomic(path) as temporary:
        temporary.write_bytes(drawn.png() if path.suffix == ".png" else drawn.svg().encode())


def read_records(paths: list[Path]) -> list[Record]:
    """All records of files, with names that can be printed; what is damaged is left out with a warning."""
    from neotta.errors import DataError
    from neotta.evaluate.record_checks import check_records
    from neotta.evaluate.records import Records

    records: list[Record] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for path in paths:
            if not path.exists():
                raise DataError(f"there is no file of records {str(path)!r}")
            records += Records(path).read(repair=False)
    for warning in caught:
        typer.echo(f"neotta: {printable(warning.message)}", err=True)
    check_records(records)
    return [shown(record) for record in records]


def shown(value: Any) -> Any:
    """A record whose names, which come from files, can be printed."""
    if isinstance(value, dict):
        return {one_line(name): shown(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [shown(entry) for entry in value]
    return one_line(value) if isinstance(value, str) else value


def render(comparison: Comparison) -> ComparisonView:
    """Make what rich prints of a comparison."""
    return ComparisonView(comparison)


class ComparisonView:
    """A comparison as rich prints it; its tables suit the width there is.

    Domains are rows and methods columns where that fits, else the other way round; if neither does, the columns
    are spread over several tables.
    """

    def __init__(self, comparison: Comparison) -> None:
        self.comparison = comparison

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the tables and the notes below them."""
        from rich.text import Text

        from neotta.report.grids import differences, failures, summary, values

        comparison = self.comparison
        yield Text.assemble((comparison.metric.title, "bold"), f" ({comparison.shared})")
        for block in comparison.blocks:
            yield Text()
            if block.title:
                yield Text(block.title, style="bold")
            yield from _fitting(values(block, comparison.metric), console, options)
            gaps = differences(block, comparison.metric)
            if gaps is not None:
                yield Text(f"\nDifference to {block.baseline} on the same samples")
                yield from _fitting(gaps, console, options)
            sentences = summary(block, comparison.metric)
            if sentences:
                yield Text()
            for line in sentences:
                yield Text(line)
            for line in failures(block):
                yield Text(line, style="red")
        yield Text()
        for note in comparison.notes():
            yield Text(note, style="dim")


class OverTimeView:
    """Accuracy batch by batch, as rich prints it."""

    def __init__(self, comparison: Comparison) -> None:
        self.comparison = comparison

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield one table per block."""
        from rich.text import Text

        from neotta.evaluate.over_time import over_time
        from neotta.report.over_time import CAPTION, TITLE, batches_table

        yield Text.assemble((TITLE, "bold"), f" ({self.comparison.shared})")
        for block in self.comparison.blocks:
            yield Text()
            if block.title:
                yield Text(block.title, style="bold")
            found = over_time(block)
            if found:
                yield from _fitting(batches_table(found), console, options)
            if left := [label for label in block.methods if label not in found]:
                yield Text(f"Left out, since their records do not say which samples were right: {', '.join(left)}.")
        yield Text()
        yield Text(CAPTION.replace("Band", "±"), style="dim")


def _fitting(grid: Grid, console: Console, options: ConsoleOptions) -> Iterator[Table | Text]:
    """The tables that show a grid within the width."""
    from rich.measure import Measurement
    from rich.text import Text

    def fits(made: Table) -> bool:
        return Measurement.get(console, options.update(width=_WIDE), made).maximum <= options.max_width

    for whole in (grid, grid.transposed()):
        if fits(table(whole)):
            yield table(whole)
            return
    start = 0
    while start < len(grid.columns):
        stop = start + 1
        while stop < len(grid.columns) and fits(table(grid.part(start, stop + 1))):
            stop += 1
        if start:
            yield Text()
        yield table(grid.part(start, stop))
        start = stop


def table(grid: Grid) -> Table:
    """A grid as rich prints it."""
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    made.add_column(Text(grid.corner), no_wrap=True)
    for name in grid.columns:
        made.add_column(Text(name), justify="right")
    for name, entries in grid.rows:
        cells = (Text.assemble((entry.text, _STYLES[entry.mark])) for entry in entries)  # no style on the padding
        made.add_row(Text(name), *cells)
    return made

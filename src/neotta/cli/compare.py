"""`neotta compare`: the table of a results file."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from neotta._words import one_line, printable
from neotta.cli import options as shared
from neotta.cli.options import words

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table

    from neotta.evaluate.comparison import Comparison
    from neotta.evaluate.records import Record
    from neotta.report.formats import Writers
    from neotta.report.grids import Grid

_STYLES = {"best": "bold", "second": "underline", "failed": "red", "helps": "green", "hurts": "red", "": ""}
_WIDE = 10_000
HARM = (
    "Gain over the plain model in points: mean, 5th percentile and worst stream. Hurt: streams that lose over a point."
)


def compare(
    results: Annotated[list[Path], typer.Argument(help="One or more files that `neotta run` wrote.")],
    metric: Annotated[str, typer.Option(help="top1, top5, ece, nll, entropy or confidence.")] = "top1",
    baseline: Annotated[str, typer.Option(help="The method that differences refer to.")] = "none",
    format: Annotated[
        str,
        typer.Option(
            help="table, md, latex, csv or parquet; several, as md,latex, go to files with the name of --output."
        ),
    ] = "table",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write it to this file.")] = None,
    html: shared.Page = None,
    over_time: Annotated[
        bool, typer.Option("--over-time", help="Show accuracy batch by batch; --output may be a .png or .svg file.")
    ] = False,
    harm: Annotated[
        str | None,
        typer.Option(
            metavar="METHOD",
            help="Show where this method gains and does harm, by kind of stream (needs runs with the order real).",
        ),
    ] = None,
    kinds: Annotated[
        str | None, typer.Option(help="With --harm: only these kinds of streams, such as 2-classes,2-in-turn.")
    ] = None,
) -> None:
    """Put the methods of results side by side: means over seeds, and differences on the same samples.

    Examples:
      neotta compare results.jsonl --html page.html
      neotta compare results.jsonl --metric ece --format md,latex -o table
    """
    from neotta._files import atomic
    from neotta.cli.console import Console, next_step
    from neotta.errors import OptionError
    from neotta.evaluate.comparison import compare as compare_records
    from neotta.evaluate.provenance import about_older, current, older
    from neotta.evaluate.sweep import left_out_lines
    from neotta.evaluate.tuning import tuning_lines
    from neotta.report.comparison_page import comparison_page
    from neotta.report.formats import chosen_formats, comma_separated, parquet_bytes, targets, write_files

    chosen = chosen_formats(format)
    figure = output if output is not None and output.suffix in (".png", ".svg") else None
    files = {} if figure is not None else targets(chosen, output)
    if figure is not None and not over_time:
        raise OptionError(f"{figure.name} is a figure, and only --over-time draws one; --html has figures too")
    if over_time and metric != "top1":
        raise OptionError("--over-time shows top-1 accuracy: omit --metric")
    if harm is not None and (over_time or html is not None or (metric, baseline) != ("top1", "none")):
        raise OptionError("--harm is about top-1 accuracy against none: it goes with --kinds, --format, --output only")
    if harm is None and kinds is not None:
        raise OptionError("--kinds goes with --harm METHOD")
    records = current(read_records(results))
    if harm is not None:
        view = _harm(records, harm, words(kinds) or [])
    else:
        comparison = compare_records(records, metric, baseline=baseline)
        if line := about_older(older(records), sum(record.measured for record in records)):
            typer.echo(f"neotta: {printable(line)}", err=True)
            comparison.remarks = (f"{line[0].upper()}{line[1:]}.",)
        comparison.remarks += (*left_out_lines(records), *tuning_lines(records))
        view = _over_time(comparison, figure) if over_time else _side_by_side(comparison)
        if html is not None:
            with atomic(html) as temporary:
                temporary.write_text(comparison_page(comparison), encoding="utf-8")
    writers: Writers = {
        "table": lambda: _text(view.shown(_WIDE)),
        "csv": lambda: comma_separated(view.rows),
        "parquet": lambda: parquet_bytes(view.rows),
        "markdown": view.markdown,
        "latex": view.latex,
    }
    if files:
        write_files(files, writers)
    elif figure is None and chosen == ["table"]:
        console = Console(highlight=False)
        console.print(view.shown(console.width))
    elif figure is None:
        typer.echo(writers[chosen[0]](), nl=False)
    next_step(f"open {html}" if html is not None else f"neotta compare {results[0]} --html page.html")


class _View(NamedTuple):
    """What is shown: at a width, as rows of plain numbers, and as texts."""

    shown: Callable[[int], Group]
    rows: list[dict[str, Any]]
    markdown: Callable[[], str]
    latex: Callable[[], str]


def _side_by_side(comparison: Comparison) -> _View:
    from neotta.evaluate.results import comparison_rows
    from neotta.report import formats

    texts = (partial(formats.markdown, comparison), partial(formats.latex, comparison))
    return _View(partial(render, comparison), comparison_rows(comparison), *texts)


def _over_time(comparison: Comparison, figure: Path | None) -> _View:
    """Accuracy batch by batch; the figure is of the block with the most methods."""
    from neotta._files import atomic
    from neotta.errors import DataError
    from neotta.evaluate.blocks import over_time
    from neotta.report import over_time as batches

    if not any(over_time(block) for block in comparison.blocks):
        raise DataError("no record says which samples were right: measure again with 'neotta run' to another file")
    if figure is not None:
        block = max(comparison.blocks, key=lambda block: len(over_time(block)))
        drawn = batches.batches_figure(over_time(block), title=f"Accuracy over time {block.title}".strip())
        with atomic(figure) as temporary:
            temporary.write_bytes(drawn.png() if figure.suffix == ".png" else drawn.svg().encode())
    texts = (partial(batches.text, comparison, format) for format in ("markdown", "latex"))
    return _View(partial(_batches, comparison), batches.comparison_rows(comparison), *texts)


def _harm(records: Sequence[Record], method: str, kinds: Sequence[str]) -> _View:
    """What a method gains and costs, by kind of stream."""
    from rich.console import Group
    from rich.text import Text

    from neotta.evaluate.stream_harm import Summary, harm_of
    from neotta.report.formats import latex_table, markdown_table
    from neotta.report.grids import grid

    harms = harm_of(records, method, kinds)
    tables = {}
    for harm in harms:
        lines = {}
        for kind, gains in {**harm.kinds, **({"all of them": harm.every()} if len(harm.kinds) > 1 else {})}.items():
            total, worst = Summary.of(gains.values()), min(gains, key=gains.__getitem__)
            points = [f"{round(gain, 1) + 0.0:+.1f}" for gain in (total.mean, total.low, total.worst)]  # no -0.0
            lines[kind] = [str(total.cells), *points, str(worst), f"{total.hurt:.1f} %"]
        tables[f"{method}: {harm.title}"] = grid("kind", ("streams", "mean", "5 %", "worst", "on", "hurt"), lines)

    def shown(width: int) -> Group:
        parts: list[RenderableType] = []
        for title, each in tables.items():
            parts += [Text(title), *_fitting(each, width), Text()]
        return Group(*parts, HARM)

    return _View(
        shown,
        [
            {"conditions": harm.title, "method": method, **cell._asdict(), "gain": gain}
            for harm in harms
            for cell, gain in harm.every().items()
        ],
        lambda: "\n\n".join([*(f"**{title}**\n\n{markdown_table(g)}" for title, g in tables.items()), HARM]) + "\n",
        lambda: "\n".join(latex_table(grid, f"{title}. {HARM}") for title, grid in tables.items()) + "\n",
    )


def _text(shown: Group) -> str:
    """What is printed, as wide as it takes."""
    from neotta.cli.console import Console

    page = io.StringIO()
    Console(file=page, width=_WIDE, highlight=False, color_system=None).print(shown)
    return "\n".join(line.rstrip() for line in page.getvalue().splitlines()) + "\n"


def read_records(paths: list[Path]) -> list[Record]:
    """All records of files, with names that can be printed; what is damaged is left out with a warning."""
    from neotta.errors import DataError
    from neotta.evaluate.records import Records

    records: list[Record] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for path in paths:
            if not path.exists():
                raise DataError(f"there is no file of records {str(path)!r}")
            records += Records(path).read()
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


def render(comparison: Comparison, width: int) -> Group:
    """What rich prints of a comparison: tables that suit the width, and the notes below them."""
    from rich.console import Group
    from rich.text import Text

    from neotta.report.grids import differences, failures, summary, values

    parts: list[RenderableType] = [Text.assemble((comparison.metric.title, "bold"), f" ({comparison.shared})")]
    for block in comparison.blocks:
        parts += [Text(), *([Text(block.title, style="bold")] if block.title else [])]
        parts += _fitting(values(block, comparison.metric), width)
        gaps = differences(block, comparison.metric)
        if gaps is not None:
            parts += [Text(f"\nDifference to {block.baseline} on the same samples"), *_fitting(gaps, width)]
        lines = summary(block, comparison.metric)
        parts += [Text("\n".join(["", *lines]))] if lines else []
        parts += [Text(line, style="red") for line in failures(block)]
    return Group(*parts, Text(), *(Text(note, style="dim") for note in comparison.notes()))


def _batches(comparison: Comparison, width: int) -> Group:
    from rich.console import Group
    from rich.text import Text

    from neotta.evaluate.blocks import over_time
    from neotta.report.over_time import CAPTION, TITLE, batches_table

    parts: list[RenderableType] = [Text.assemble((TITLE, "bold"), f" ({comparison.shared})")]
    for block in comparison.blocks:
        steps = over_time(block)
        parts += [Text(), *([Text(block.title, style="bold")] if block.title else [])]
        parts += _fitting(batches_table(steps), width) if steps else []
        if left := [label for label in block.methods if label not in steps]:
            parts.append(Text(f"Left out, since their records do not say which samples were right: {', '.join(left)}."))
    return Group(*parts, Text(), Text(CAPTION.replace("Band", "±"), style="dim"))


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

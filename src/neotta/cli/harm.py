"""`neotta compare --harm METHOD`: where a method does harm, by kind of stream."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from neotta.evaluate.records import Record
    from neotta.evaluate.stream_harm import Harm
    from neotta.report.comparison_files import Writers
    from neotta.report.grids import Grid

CAPTION = (
    "Gain over the plain model in points. A cell is a domain in a kind of stream; it is hurt if it loses over a point."
)
_COLUMNS = ("cells", "mean", "worst", "on", "hurt")
_EVERY = "all of them"


def show_harm(
    records: Sequence[Record], method: str, kinds: str | None, formats: Sequence[str], files: Mapping[str, Path]
) -> None:
    """Print what a method gains and costs, or write it to files."""
    from neotta.evaluate.stream_harm import harm_of
    from neotta.report.comparison_files import parquet_bytes, write_files
    from neotta.report.formats import comma_separated, latex_table, markdown_table

    found = harm_of(records, method, [kind.strip() for kind in (kinds or "").split(",") if kind.strip()])
    tables = [(f"{method}: {harm.title}", _grid(harm)) for harm in found]
    rows = list(_rows(found, method))
    writers: Writers = {
        "table": lambda: _text(tables),
        "markdown": lambda: "\n\n".join([*(f"**{t}**\n\n{markdown_table(g)}" for t, g in tables), CAPTION]) + "\n",
        "latex": lambda: "\n".join(latex_table(grid, f"{title}. {CAPTION}") for title, grid in tables) + "\n",
        "csv": lambda: comma_separated(rows, list(rows[0])),
        "parquet": lambda: parquet_bytes(rows),
    }
    if files:
        write_files(files, writers)
        return
    typer.echo(writers[formats[0]](), nl=False)


def _text(tables: Sequence[tuple[str, Grid]]) -> str:
    from neotta.cli.compare import table
    from neotta.cli.console import Console

    page = io.StringIO()
    console = Console(file=page, width=200, highlight=False, color_system=None)
    for title, grid in tables:
        console.print(title, table(grid), "", sep="\n", markup=False)
    console.print(CAPTION)
    return "\n".join(line.rstrip() for line in page.getvalue().splitlines()) + "\n"


def _grid(harm: Harm) -> Grid:
    from neotta.evaluate.stream_harm import Summary
    from neotta.report.grids import grid

    named = {**harm.kinds, _EVERY: harm.every()} if len(harm.kinds) > 1 else harm.kinds
    rows = {}
    for kind, gains in named.items():
        total = Summary.of(gains.values())
        worst = min(gains, key=gains.__getitem__)
        rows[kind] = [str(total.cells), _points(total.mean), _points(total.worst), worst, str(total.hurt_cells)]
    return grid("stream", _COLUMNS, rows)


def _points(gain: float) -> str:
    return f"{round(gain, 1) + 0.0:+.1f}"  # no -0.0


def _rows(found: Sequence[Harm], method: str) -> Iterator[dict[str, Any]]:
    """The gain of every cell."""
    for harm in found:
        for kind, gains in harm.kinds.items():
            for domain, gain in gains.items():
                yield {"conditions": harm.title, "method": method, "kind": kind, "domain": domain, "gain": gain}

"""`neotta leaderboard`: the records of many people on one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from neotta._words import printable


def leaderboard(
    records: Annotated[list[Path], typer.Argument(help="Files that 'neotta run' and 'neotta bench -o' wrote.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The page.")] = Path("leaderboard.html"),
) -> None:
    """Rank the methods in RECORDS, of one or many people, on one HTML page that needs no network.

    Only rows with the same weights, preprocessing and samples in the same order are ranked together. Each row opens to
    the command that measures it again.
    """
    from neotta._files import atomic
    from neotta.cli.compare import read_records
    from neotta.evaluate.leaderboard import leaderboard as ranked
    from neotta.evaluate.provenance import about_older, older
    from neotta.report.leaderboard import leaderboard_page

    files = {_name(path, records): read_records([path]) for path in dict.fromkeys(records)}
    groups = ranked(files)
    every = [record for found in files.values() for record in found]
    line = about_older(older(every), sum("metrics" in record for record in every))
    notes = [f"{line[0].upper()}{line[1:]}."] if line else []
    page = leaderboard_page(groups, list(files), notes)
    with atomic(output) as temporary:
        temporary.write_text(page, encoding="utf-8")
    rows = sum(len(group.rows) for group in groups)
    typer.echo(f"{rows} rows in {len(groups)} groups: {printable(output)}")


def _name(path: Path, every: list[Path]) -> str:
    """The name of a file; with its folders where names are the same."""
    same = [other for other in every if other.name == path.name and other != path]
    return str(path) if same else path.name

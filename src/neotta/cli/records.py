"""`neotta records`: the files that results are kept in."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

records_app = typer.Typer(help="Convert files of results.", no_args_is_help=True)


@records_app.callback()
def _top() -> None:
    pass


@records_app.command()
def convert(
    source: Annotated[Path, typer.Argument(help="A .jsonl or .parquet file of results.")],
    target: Annotated[Path, typer.Argument(help="The new file: .jsonl to append to, .parquet to keep.")],
) -> None:
    """Convert results between lines of JSON and Parquet. Nothing is lost; damaged lines are omitted."""
    from neotta._words import counted, printable
    from neotta.errors import DataError
    from neotta.evaluate.records import Records, write_records

    if not source.is_file():
        raise DataError(f"there is no file of records {str(source)!r}")
    if target.exists():
        raise DataError(f"{str(target)!r} exists: name a new file")
    records = Records(source).read(repair=False)
    write_records(records, target)
    typer.echo(f"{counted(len(records), 'record')} in {printable(target)}, {target.stat().st_size:,} bytes")

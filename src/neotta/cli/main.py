"""The `neotta` command: thin commands over the library, and errors as one clear line."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from neotta._version import __version__
from neotta.cli.bench import bench
from neotta.cli.compare import compare
from neotta.cli.corrupt import corrupt
from neotta.cli.data import data_app
from neotta.cli.demo import demo
from neotta.cli.export import export
from neotta.cli.methods import methods
from neotta.cli.models import models
from neotta.cli.run import run
from neotta.errors import NeottaError

app = typer.Typer(
    name="neotta",
    help="Test-time adaptation of image classifiers by latent re-centering.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(demo)
app.add_typer(data_app, name="data")
app.command()(compare)
app.command()(corrupt)
app.command()(export)
app.command()(methods)
app.command()(models)
app.command()(run)
app.command()(bench)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"neotta {__version__}")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; what neotta raises on purpose is shown as one line."""
    try:
        app()
    except NeottaError as error:
        typer.echo(f"neotta: {error}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        typer.echo("neotta: interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output (head, less) has gone
        sys.stderr.close()
        sys.exit(1)

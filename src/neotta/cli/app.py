"""The `neotta` command: thin commands over the library, and errors as one clear line."""

from __future__ import annotations

import difflib
import os
import sys
import warnings
from typing import Annotated, Any, TextIO

import typer

from neotta._processes import interrupt_code, terminations_raised
from neotta._version import __version__
from neotta._words import printable
from neotta.cli.bench import bench
from neotta.cli.check import check
from neotta.cli.compare import compare
from neotta.cli.corrupt import corrupt
from neotta.cli.data import data_app
from neotta.cli.demo import demo
from neotta.cli.export import export
from neotta.cli.leaderboard import leaderboard
from neotta.cli.methods import methods
from neotta.cli.models import models
from neotta.cli.paper import paper
from neotta.cli.records import records_app
from neotta.cli.run import run
from neotta.cli.serve import serve
from neotta.errors import NeottaError

ClickException: type[Exception] = typer.BadParameter.__mro__[2]
"""Of click, which some versions of typer bring along under a name of their own."""

app = typer.Typer(
    name="neotta",
    help="Test-time adaptation of image classifiers by latent re-centering.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(demo)
app.command()(check)
app.add_typer(data_app, name="data")
app.command()(compare)
app.command()(corrupt)
app.command()(export)
app.command()(leaderboard)
app.command()(methods)
app.command()(models)
app.command()(run)
app.command()(paper)
app.command()(serve)
app.command()(bench)
app.add_typer(records_app, name="records")


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


def run_app() -> None:
    """Run the command line; mistakes, and what neotta raises on purpose, are shown as one line."""
    warnings.showwarning = _warn
    try:
        with terminations_raised() as terminated:
            code = app(standalone_mode=False)
            if code == 130 and terminated.is_set():
                code = 143
        sys.stdout.flush()  # here, where a closed pipe can still be dealt with
    except ClickException as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()  # type: ignore[attr-defined]  # the help
        else:
            typer.echo(f"neotta: {printable(_usage(error))}", err=True)
        sys.exit(2)
    except NeottaError as error:
        typer.echo(f"neotta: {printable(error)}", err=True)
        sys.exit(2)
    except (KeyboardInterrupt, typer.Abort) as error:
        typer.echo("neotta: interrupted", err=True)
        sys.exit(interrupt_code(error))
    except BrokenPipeError:  # the reader of our output (head, less) has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what Python flushes at its end
        sys.exit(1)
    except MemoryError as error:
        typer.echo(f"neotta: {': '.join(filter(None, ['not enough memory', printable(error)]))}", err=True)
        sys.exit(2)
    except OSError as error:  # the disk is full, or a file is not to be read or written
        if error.errno is None:
            raise
        where = "" if error.filename is None else f" ({error.filename})"
        typer.echo(f"neotta: {error.strerror}{printable(where)}", err=True)
        sys.exit(2)
    sys.exit(code if isinstance(code, int) else 0)


def _warn(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """One line for a warning too; where in the code it comes from tells the user nothing."""
    print(f"neotta: {printable(message)}", file=file or sys.stderr)


def _usage(error: Any) -> str:
    """One line for a mistyped command or option: `no such command 'demmo': did you mean 'demo'?`."""
    message = " ".join(error.format_message().split())
    message, _, hint = message.partition(" Did you mean ")
    if possible := getattr(error, "possibilities", None):
        near = difflib.get_close_matches(str(getattr(error, "option_name", "")), possible, n=1)
        message, hint = message.partition(" (Possible")[0], repr(near[0]) if near and not hint else hint
    where = error.ctx.command_path if getattr(error, "ctx", None) else "neotta"
    ending = f"did you mean {hint.rstrip('?. ')}?" if hint else f"see {where} --help"
    return f"{message[:1].lower()}{message[1:].rstrip('.?,: ')}: {ending}"

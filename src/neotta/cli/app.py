"""The `neotta` command: thin commands over the library, and errors as one clear line."""

from __future__ import annotations

import difflib
import os
import sys
import warnings
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from neotta._processes import interrupt_code, terminations_raised
from neotta._version import __version__
from neotta._words import printable
from neotta.cli.bench import bench
from neotta.cli.check import check
from neotta.cli.compare import compare
from neotta.cli.corrupt import corrupt
from neotta.cli.data import download, info
from neotta.cli.demo import demo
from neotta.cli.export import export
from neotta.cli.judge import judge
from neotta.cli.methods import methods
from neotta.cli.models import models
from neotta.cli.orders import orders
from neotta.cli.paper import paper
from neotta.cli.predict import predict
from neotta.cli.run import run
from neotta.cli.serve import serve
from neotta.errors import NeottaError

ClickException: type[Exception] = typer.BadParameter.__mro__[2]
"""The exception of click, which some versions of typer bundle under another name."""


NUMBERS = ("batch_size", "jobs", "port", "rounds", "samples", "seeds")
FILES = ("answers", "ask", "config", "key_file", "output", "recorded", "state")
MOVED = {  # how 0.3 spelled it, and how it is spelled now; to be removed in 0.5
    "--allow-code": "what you type yourself needs no permission: omit it",
    "--dtype": "that is neotta.evaluate.costs.measure_costs(dtype=...)",
    "--html": "that is neotta compare results.jsonl -o page.html",
    "--open": "open the page that is named at the end",
    "--reference": "that is -o FILE",
}


class _Readable:
    """Help in which flags stand without a type, and values and arguments in capitals."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters, with what the help shows of them."""
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if param.param_type_name == "argument":
                param.metavar = param.metavar or param.name.upper()
                param.display_type_rich = lambda ctx: None  # <str>: it says nothing
            elif param.is_flag:
                param.metavar = ""
            else:
                usual = "N" if param.name in NUMBERS else "FILE" if param.name in FILES else "TEXT"
                param.metavar = param.metavar or usual
        return params


class Command(_Readable, TyperCommand):
    """A command with readable help."""


class Group(_Readable, TyperGroup):
    """Commands with readable help."""


app = typer.Typer(
    name="neotta",
    cls=Group,
    help="Test-time adaptation of image classifiers by latent re-centering. Commands end with the next useful one.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
GROUPS = {
    "Start": (demo, judge, check),
    "Measure": (run, compare, paper, bench),
    "Deploy": (predict, export, serve),
    "Look up": (methods, orders, models, corrupt),
}
for panel, commands in GROUPS.items():
    for command in commands:
        by_environment = {"auto_envvar_prefix": "NEOTTA_SERVE"} if command is serve else None
        app.command(cls=Command, rich_help_panel=panel, context_settings=by_environment)(command)
data_app = typer.Typer(help="Look at datasets on disk, and download the paper's.", no_args_is_help=True, cls=Group)
data_app.command(cls=Command)(info)
data_app.command(cls=Command)(download)
app.add_typer(data_app, name="data", rich_help_panel="Look up")


def _version(show: bool) -> None:
    if show:
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
            code = app(standalone_mode=False, prog_name="neotta")
            if code == 130 and terminated.is_set():
                code = 143
        sys.stdout.flush()  # here, where a closed pipe can still be dealt with
    except (KeyboardInterrupt, typer.Abort) as error:
        typer.echo("neotta: interrupted", err=True)
        sys.exit(interrupt_code(error))
    except BrokenPipeError:  # the reader of our output (head, less) has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what Python flushes at its end
        sys.exit(1)
    except (ClickException, NeottaError, MemoryError, OSError) as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()  # type: ignore[attr-defined]  # the help
        elif isinstance(error, OSError) and not isinstance(error, NeottaError) and error.errno is None:
            raise
        else:
            typer.echo(f"neotta: {printable(_line(error))}", err=True)
        sys.exit(2)
    sys.exit(code if isinstance(code, int) else 0)


def _line(error: Exception) -> str:
    if isinstance(error, ClickException):
        return _usage(error)
    if isinstance(error, MemoryError):
        return ": ".join(filter(None, ["not enough memory", str(error)]))
    if isinstance(error, OSError) and not isinstance(error, NeottaError):  # the disk is full, or a file is not allowed
        return f"{error.strerror}" + ("" if error.filename is None else f" ({error.filename})")
    return str(error)


def _warn(message: Warning | str, *_: Any, **__: Any) -> None:
    """One line for a warning too; where in the code it comes from tells the user nothing."""
    print(f"neotta: {printable(message)}", file=sys.stderr)


def _usage(error: Any) -> str:
    """One line for a mistyped command or option: `no such command 'demmo': did you mean 'demo'?`."""
    message = " ".join(error.format_message().split())
    message, _, hint = message.partition(" Did you mean ")
    message = message.partition(" (Possible")[0].rstrip(".?,: ")
    ending = _written(error) or (f"did you mean {hint.rstrip('?. ')}?" if hint else "")
    where = error.ctx.command_path if getattr(error, "ctx", None) else "neotta"
    return f"{message[:1].lower()}{message[1:]}: {ending or f'see {where} --help'}"


def _written(error: Any) -> str:
    """How to write what was meant: the model and the data come first and by their places, the output after `-o`."""
    if getattr(error, "ctx", None) is None:
        return ""
    option, params = getattr(error, "option_name", ""), error.ctx.command.params
    places = [param.name.upper() for param in params if param.param_type_name == "argument"]
    usage = " ".join([error.ctx.command_path, *places])
    if not option:
        needed = [param.required for param in params if "--output" in param.opts]
        return f"it is {usage} {'-o OUTPUT' if needed[0] else '[-o OUTPUT]'}" if needed else ""
    known = {f"--{place.lower()}": f"it is given by its place, {usage}" for place in places} | MOVED
    known |= {name: f"did you mean {name!r}?" for param in params for name in param.opts if name.startswith("--")}
    known = {name.lstrip("-"): hint for name, hint in known.items()}  # dashes would make any two alike
    near = difflib.get_close_matches(option.lstrip("-"), known, n=1)
    return known[near[0]] if near else ""

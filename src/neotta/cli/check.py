"""`neotta check`: before deployment, what adapting would cost on clean data, and which line to use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from neotta.cli import shared_options as shared
from neotta.cli.shared_options import HOW, WHAT
from neotta.cli.values import model_options
from neotta.errors import OptionError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from neotta.evaluate.check import CheckReport


def check(
    model: Annotated[str, typer.Argument(help="As `neotta models` lists them.", show_default=True)] = "digits",
    data: Annotated[
        str,
        typer.Option(help="Clean images: a folder, LAYOUT=PATH, or digits. Labels are optional.", rich_help_panel=WHAT),
    ] = "digits",
    domain: Annotated[
        str | None, typer.Option(help="Which domain of the data is clean. Default: the first.", rich_help_panel=WHAT)
    ] = None,
    checkpoint: shared.Checkpoint = None,
    num_classes: shared.NumClasses = None,
    model_option: shared.ModelOption = None,
    samples: Annotated[int, typer.Option(min=32, help="Number of images, at most.", rich_help_panel=WHAT)] = 1000,
    reference: Annotated[
        Path | None,
        typer.Option(
            help="Also write where the clean data lies to this .safetensors file, for adapt(model, reference=...).",
            rich_help_panel=HOW,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.", rich_help_panel=HOW)] = False,
    seed: Annotated[int, typer.Option(min=0, help="For the choice and order of the images.", rich_help_panel=HOW)] = 0,
    device: shared.Device = None,
    allow_code: shared.AllowCode = False,
) -> None:
    """Check on clean images what adapting would cost, and recommend one line to use, or none."""
    import json

    from neotta.cli.console import Console

    options = model_options(checkpoint, num_classes, model_option, allow_code=allow_code)
    if reference is not None and reference.suffix != ".safetensors":
        raise OptionError(f"--reference is {str(reference)!r}: name a .safetensors file")
    with _progress(Console(stderr=True)) as report_progress:
        from neotta.evaluate.check import check as measure
        from neotta.evaluate.workbench import Workbench

        bench = Workbench(model, data, model_options=options, device=device)
        domains = bench.data.names()
        if domain is not None and domain not in domains:
            raise OptionError(f"--domain is {domain!r}: the data has {', '.join(domains)}")
        found = measure(bench, domain or domains[0], samples, report_progress, seed)
    if reference is not None:
        found.reference.save(reference)
    console = Console(highlight=False)
    if as_json:
        typer.echo(json.dumps(found.as_dict(), indent=2))
        return
    _show(console, found)
    if reference is not None:
        console.print(f"The reference was written to {reference}.", markup=False)


def _show(console: Console, report: CheckReport) -> None:
    from rich.text import Text

    from neotta.evaluate.check_words import sentences

    what = "accuracy" if report.labelled else "agreement with the plain model"
    console.print(Text(f"{report.model} on {report.images} clean images of {report.data}\n"))
    shown = f"{report.images_shown} of them" if report.labelled else f"{report.images_shown} clean images"
    console.print(Text(f"Change of {what} on {shown}, in points, by rule, order and batch size"))
    console.print(_table(report))
    console.print()
    for line in sentences(report):
        console.print(Text(line))


def _table(report: CheckReport) -> Table:
    from rich.table import Column, Table
    from rich.text import Text

    from neotta.evaluate.check import BATCH_SIZES, ORDERS

    table = Table(
        "rule",
        "order",
        *(Column(f"batch {size}", justify="right") for size in BATCH_SIZES),
        box=None,
        header_style="bold",
        pad_edge=False,
        padding=(0, 2, 0, 0),
    )
    for rule in report.rules:
        for place, (kind, name) in enumerate(ORDERS.items()):
            title = f"{rule.rule}{', reference' if rule.reference else ''}" if place == 0 else ""
            values = [rule.changes[kind][size] for size in BATCH_SIZES]
            table.add_row(title, name, *(Text(f"{value:+.1f}", style=_colour(value)) for value in values))
    return table


def _colour(value: float) -> str:
    return "red" if value < -1.0 else "green" if value > 1.0 else ""


@contextmanager
def _progress(console: Console) -> Iterator[Callable[[str, int, int], None]]:
    """A moving bar on a terminal; nothing elsewhere, as a check takes about a minute."""
    if not console.is_terminal:
        yield lambda name, done, total: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:28}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("loading the model", total=None)
        yield lambda name, done, total: progress.update(task, description=name, completed=done, total=total)

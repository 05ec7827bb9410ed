"""`neotta data`: what lies on disk, and fetching what does not."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from neotta.data.info import DomainInfo, Info

data_app = typer.Typer(help="Look at datasets on disk, and download the paper's.", no_args_is_help=True)


@data_app.command()
def info(
    path: Annotated[str, typer.Argument(help="A path, LAYOUT=PATH (as imagenet-c=PATH), or 'digits'.")],
    domain: Annotated[list[str] | None, typer.Option(help="Only these: fog/5, fog, or '*/5'.")] = None,
    sample: Annotated[int, typer.Option(min=1, help="Samples of each domain to check by their headers.")] = 100,
    full: Annotated[bool, typer.Option("--full", help="Decode every sample: finds truncated files.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Say what is at PATH: layout, domains, classes, counts, sizes, and the first problems."""
    from rich.console import Console
    from rich.progress import Progress

    from neotta.data.info import describe
    from neotta.data.opening import open_data

    source = open_data(path, domains=domain)
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("looking", total=None)

        def progress(name: str, done: int, total: int) -> None:
            bar.update(task, description=name, completed=done, total=total)

        found = describe(source, sample=sample, full=full, progress=progress)
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(found), indent=2))
    else:
        _show(found)


def _show(found: Info) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Column, Table

    console = Console()
    domains = "1 domain" if len(found.domains) == 1 else f"{len(found.domains)} domains"
    classes = "unknown" if found.classes is None else f"{found.classes:,}"
    part = "" if found.class_indices is None else " (of the model's 1,000)"
    console.print(f"[bold]{found.layout}[/bold] at {escape(str(found.root or 'neotta itself'))}", soft_wrap=True)
    console.print(f"{found.count:,} images in {domains}, classes: {classes}{part}")
    table = Table(Column("domain", overflow="fold"), "images", "classes", "per class", "size", "mode", "checked", "bad")
    for domain in found.domains:
        table.add_row(escape(domain.name), *_cells(domain), style="red" if domain.problems else None)
    console.print(table)
    problems = [(domain.name, *problem) for domain in found.domains for problem in domain.problems]
    for name, sample, reason in problems[:10]:
        where = name if name == sample else f"{name}: {sample}"
        console.print(f"[red]{escape(where)}[/red]: {escape(reason)}", soft_wrap=True, highlight=False)
    if not problems:
        console.print("No problems found.")
    elif len(problems) > 10:
        console.print(f"... and {len(problems) - 10} more")


def _cells(domain: DomainInfo) -> list[str]:
    few, many = domain.per_class or (0, 0)
    per_class = "-" if domain.per_class is None else f"{few}" if few == many else f"{few}-{many}"
    return [
        f"{domain.count:,}",
        "-" if domain.classes is None else f"{domain.classes:,}",
        per_class,
        _most(domain.sizes),
        _most(domain.modes),
        f"{domain.checked:,}",
        f"{domain.bad:,}",
    ]


def _most(counts: dict[str, int]) -> str:
    """The commonest value and how many others there are."""
    if not counts:
        return "-"
    others = len(counts) - 1
    return next(iter(counts)) + (f" (+{others})" if others else "")


@data_app.command()
def download(
    name: Annotated[str, typer.Argument(help="cifar10-c, imagenet-c, imagenet-r, imagenet-sketch or cifar-10.")],
    dest: Annotated[Path, typer.Argument(help="The folder to put it in; the dataset gets a folder there.")] = Path(
        "data"
    ),
    part: Annotated[
        list[str] | None,
        typer.Option(help="Only this part of imagenet-c: blur, digital, extra, noise, weather."),
    ] = None,
    mirror: Annotated[str | None, typer.Option(help="Address of a folder that holds the same archives.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the archives after unpacking.")] = False,
    verify: Annotated[bool, typer.Option(help="Compare the archives with their published checksums.")] = True,
) -> None:
    """Download a dataset of the paper, check it and unpack it; started again it goes on where it stopped."""
    from neotta.data.downloads import download as fetch
    from neotta.data.downloads.catalog import find
    from neotta.data.downloads.progress import bars

    steps = set()
    with bars() as bar:

        def progress(what: str, done: int, total: int | None) -> None:
            steps.add(what)
            bar(what, done, total)

        root = fetch(name, dest, mirror=mirror, parts=part, keep=keep, verify=verify, progress=progress)
    for archive in find(name).choose(part):
        if archive.checksum is None and f"downloading {archive.file}" in steps:
            typer.echo(f"No checksum of {archive.file} is known: only its length was checked.", err=True)
    typer.echo(f"{name} is in {root}")

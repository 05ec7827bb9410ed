"""`neotta data`: what lies on disk, and fetching what does not."""

from __future__ import annotations

import dataclasses
import json
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from neotta._words import counted, printable

if TYPE_CHECKING:
    from neotta.data.info import DomainInfo, Info

SHOWN = 10
"""How many different problems `info` describes."""

data_app = typer.Typer(help="Look at datasets on disk, and download the paper's.", no_args_is_help=True)


@data_app.command()
def info(
    path: Annotated[
        str, typer.Argument(help="A path, LAYOUT=PATH (as imagenet-c=PATH), 'digits', or an address of CCC.")
    ],
    domain: Annotated[list[str] | None, typer.Option(help="Only these: fog/5, fog, or '*/5'.")] = None,
    sample: Annotated[int, typer.Option(min=1, help="Samples of each domain to check by their headers.")] = 100,
    full: Annotated[bool, typer.Option("--full", help="Decode every sample: finds truncated files.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Describe what is at PATH: layout, domains, classes, counts, sizes, and the first problems."""
    from rich.progress import Progress

    from neotta.cli.console import Console
    from neotta.cli.fetching import fetch_data
    from neotta.data.info import describe
    from neotta.data.opening import open_data

    fetch_data(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the notes are shown below
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
    if found.count == 0:  # no domain could be opened
        raise typer.Exit(1)


def _show(found: Info) -> None:
    from rich.markup import escape
    from rich.table import Column, Table

    from neotta.cli.console import Console

    console = Console()
    classes = "unknown" if found.classes is None else f"{found.classes:,}"
    part = "" if found.class_indices is None else " (of the model's 1,000)"
    console.print(f"[bold]{found.layout}[/bold] at {escape(printable(found.root or 'neotta itself'))}", soft_wrap=True)
    console.print(
        f"{counted(found.count, 'image')} in {counted(len(found.domains), 'domain')}, classes: {classes}{part}"
    )
    for note in found.notes:
        console.print(f"[yellow]{escape(printable(note))}[/yellow]", soft_wrap=True, highlight=False)
    headings = ("images", "classes", "of each", "size", "mode", "bad/seen")
    table = Table(Column("domain", overflow="fold"), *headings, box=None, padding=(0, 1, 0, 0))
    for name, cells, is_bad in _rows(found.domains):
        table.add_row(escape(printable(name)), *cells, style="red" if is_bad else None)
    console.print(table)
    for where, reason in _problems(found.domains):
        console.print(
            f"[red]{escape(printable(where))}[/red]: {escape(printable(reason))}", soft_wrap=True, highlight=False
        )
    console.print(_verdict(found), highlight=False, soft_wrap=True)


def _verdict(found: Info) -> str:
    closed = sum(domain.count == 0 for domain in found.domains)
    if closed == len(found.domains):
        return "No domain can be opened."
    result = f"{found.bad:,} bad" if found.bad else "no problems"
    result += f" in them, {counted(closed, 'domain')} cannot be opened" if closed else ""
    if found.full:
        return f"All {counted(found.count, 'image')} decoded: {result}."
    return f"Headers of {found.checked:,} of {counted(found.count, 'image')} checked: {result}; --full decodes all."


def _rows(domains: list[DomainInfo]) -> list[tuple[str, list[str], bool]]:
    """One row for all severities of a corruption that look the same: `fog/1-5`; numbers are those of each."""
    groups: dict[tuple[str, ...], list[DomainInfo]] = {}
    for domain in domains:
        name, _, severity = domain.name.rpartition("/")
        groups.setdefault((name if severity.isdigit() else domain.name, *_cells(domain)), []).append(domain)
    rows = []
    for (name, *cells), members in groups.items():
        severities = _ranges([member.name.rpartition("/")[2] for member in members])
        label = members[0].name if len(members) == 1 else f"{name}/{severities}"
        rows.append((label, cells, bool(members[0].problems)))
    return rows


def _ranges(numbers: list[str]) -> str:
    """`1-5` for all of them, else `1,2,5`."""
    whole = len(numbers) > 2 and [int(number) for number in numbers] == [*range(int(numbers[0]), int(numbers[-1]) + 1)]
    return f"{numbers[0]}-{numbers[-1]}" if whole else ",".join(numbers)


def _problems(domains: list[DomainInfo]) -> list[tuple[str, str]]:
    """Where something is wrong and what; equal reasons are told once, with the first place and how many more."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for domain in domains:
        for sample, reason in domain.problems:
            where = domain.name if sample == domain.name else f"{domain.name}: {sample}"
            groups.setdefault(re.sub(r"'[^']*'", "", reason), []).append((where, reason))
    found = []
    for (where, reason), *others in groups.values():
        found.append((f"{where} and {len(others)} more" if others else where, reason))
    return found[:SHOWN] + ([("...", f"{len(found) - SHOWN} other reasons: see --json")] if found[SHOWN:] else [])


def _cells(domain: DomainInfo) -> list[str]:
    few, many = domain.per_class or (0, 0)
    per_class = "-" if domain.per_class is None else f"{few}" if few == many else f"{few}-{many}"
    return [
        f"{domain.count:,}",
        "-" if domain.classes is None else f"{domain.classes:,}",
        per_class,
        _most(domain.sizes),
        _most(domain.modes),
        f"{domain.bad:,}/{domain.checked:,}" if domain.checked else "all",
    ]


def _most(counts: dict[str, int]) -> str:
    """The commonest value and how many others there are."""
    if not counts:
        return "-"
    others = len(counts) - 1
    return next(iter(counts)) + (f" +{others}" if others else "")


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
    """Download a dataset of the paper, check it and unpack it; an interrupted download continues."""
    from neotta.cli.fetching import download_bars
    from neotta.data.downloads import download as fetch
    from neotta.data.downloads.published import find

    steps: set[str] = set()
    with download_bars() as shown:

        def progress(what: str, done: int, total: int | None) -> None:
            steps.add(what)
            shown(what, done, total)

        root = fetch(name, dest, mirror=mirror, parts=part, keep=keep, verify=verify, progress=progress)
    for archive in find(name).choose(part):
        if not (verify and archive.checksum) and f"downloading {archive.file}" in steps:
            typer.echo(f"{archive.file} was not compared with a checksum: only its length was checked.", err=True)
    typer.echo(printable(f"{name} is in {root}"))

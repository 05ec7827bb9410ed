"""`neotta data`: what lies on disk, and fetching what does not."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from neotta._words import counted, printable
from neotta.errors import DataError

if TYPE_CHECKING:
    from neotta.data.info import DomainInfo, Info

SHOWN = 10
"""How many different problems `info` describes."""
MOST_LOOKED_INTO = 100
"""How many files and folders `info` looks into to find out whether they are datasets."""


def info(
    path: Annotated[
        str, typer.Argument(help="A folder, LAYOUT=PATH (as imagenet-c=PATH), digits, or an address of CCC.")
    ],
    full: Annotated[bool, typer.Option("--full", help="Decode every image, to find damaged ones.")] = False,
) -> None:
    """Describe what is at PATH: layout, domains, classes, counts, sizes, and the first problems.

    Examples:
      neotta data info photos/
      neotta data info imagenet-c=data/imagenet-c --full
    """
    from neotta.cli.console import Console, next_step, progress_bar
    from neotta.data.info import describe
    from neotta.data.opening import open_data

    fetch_data(path)
    if inside := _datasets_in(Path(path)):
        first = Path(path) / next(iter(inside))
        listed = ", ".join(f"{name} ({layout})" for name, layout in inside.items())
        raise DataError(f"{path!r} is a folder of datasets: {listed}. Name one of them: neotta data info {first}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the notes are shown below
        source = open_data(path)
    with progress_bar(Console(stderr=True)) as progress:
        facts = describe(source, full=full, progress=progress)
    _show(facts)
    if facts.count == 0:  # no domain could be opened
        raise typer.Exit(1)
    next_step(f"neotta run MODEL {path}")


def _datasets_in(folder: Path) -> dict[str, str]:
    """What lies in a folder that is no dataset itself, with their layouts; empty if it is one, or holds only images."""
    from neotta.data.layouts import GENERIC, recognise
    from neotta.data.layouts.folders import SPLITS

    if not folder.is_dir() or recognise(folder) not in (None, *GENERIC):
        return {}
    children = sorted(child for child in folder.iterdir() if child.name not in SPLITS)[:MOST_LOOKED_INTO]
    layouts = {child.name: layout for child in children if (layout := recognise(child))}
    return layouts if set(layouts.values()) - set(GENERIC) else {}


def _show(facts: Info) -> None:
    from rich.table import Column, Table
    from rich.text import Text

    from neotta.cli.console import Console, say

    console = Console(highlight=False)
    classes = "unknown" if facts.classes is None else f"{facts.classes:,}"
    part = "" if facts.class_indices is None else " (of the model's 1,000)"
    say(console, f"{facts.layout} at {facts.root or 'neotta itself'}")
    say(
        console, f"{counted(facts.count, 'image')} in {counted(len(facts.domains), 'domain')}, classes: {classes}{part}"
    )
    for note in facts.notes:
        console.print(Text(printable(note), style="yellow"), soft_wrap=True)
    headings = ("images", "classes", "of each", "size", "mode", "bad/seen")
    table = Table(Column("domain", overflow="fold"), *headings, box=None, padding=(0, 1, 0, 0))
    for name, cells, is_bad in _rows(facts.domains):
        table.add_row(Text(printable(name)), *cells, style="red" if is_bad else None)
    console.print(table)
    for where, reason in _problems(facts.domains):
        console.print(Text.assemble((printable(where), "red"), f": {printable(reason)}"), soft_wrap=True)
    closed = sum(domain.count == 0 for domain in facts.domains)
    result = f"{facts.bad:,} bad" if facts.bad else "no problems"
    result += f" in them, {counted(closed, 'domain')} cannot be opened" if closed else ""
    seen = f"Headers of {facts.checked:,} of {counted(facts.count, 'image')} checked: {result}; --full decodes all."
    every = f"All {counted(facts.count, 'image')} decoded: {result}."
    say(console, "No domain can be opened." if closed == len(facts.domains) else every if facts.full else seen)


def _rows(domains: list[DomainInfo]) -> list[tuple[str, list[str], bool]]:
    """One row for all severities of a corruption that look the same: `fog/1,2,5`; numbers are those of each."""
    groups: dict[tuple[str, ...], list[DomainInfo]] = {}
    for domain in domains:
        name, _, severity = domain.name.rpartition("/")
        groups.setdefault((name if severity.isdigit() else domain.name, *_cells(domain)), []).append(domain)
    rows = []
    for (name, *cells), members in groups.items():
        numbers = [member.name.rpartition("/")[2] for member in members]
        whole = len(numbers) > 2 and list(map(int, numbers)) == [*range(int(numbers[0]), int(numbers[-1]) + 1)]
        severities = f"{numbers[0]}-{numbers[-1]}" if whole else ",".join(numbers)
        label = members[0].name if len(members) == 1 else f"{name}/{severities}"
        rows.append((label, cells, bool(members[0].problems)))
    return rows


def _cells(domain: DomainInfo) -> list[str]:
    def most(counts: dict[str, int]) -> str:
        return " +".join([*list(counts)[:1], *([str(len(counts) - 1)] if len(counts) > 1 else [])]) or "-"

    few, many = domain.per_class or (0, 0)
    return [
        f"{domain.count:,}",
        "-" if domain.classes is None else f"{domain.classes:,}",
        "-" if domain.per_class is None else f"{few}" if few == many else f"{few}-{many}",
        most(domain.sizes),
        most(domain.modes),
        f"{domain.bad:,}/{domain.checked:,}" if domain.checked else "all",
    ]


def _problems(domains: list[DomainInfo]) -> list[tuple[str, str]]:
    """Where something is wrong and what; equal reasons are listed once, with the first place and how many more."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for domain in domains:
        for sample, reason in domain.problems:
            where = domain.name if sample == domain.name else f"{domain.name}: {sample}"
            groups.setdefault(re.sub(r"'[^']*'", "", reason), []).append((where, reason))
    problems = [
        (f"{where} and {len(others)} more" if others else where, reason) for (where, reason), *others in groups.values()
    ]
    more = [("...", f"{len(problems) - SHOWN} other reasons")] if problems[SHOWN:] else []
    return problems[:SHOWN] + more


def download(
    name: Annotated[str, typer.Argument(help="cifar10-c, imagenet-c, imagenet-r, imagenet-sketch or cifar-10.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FOLDER", help="Where to put it: the dataset gets a folder there.")
    ] = Path("data"),
    part: Annotated[
        list[str] | None,
        typer.Option(help="Only this part of imagenet-c: blur, digital, extra, noise or weather."),
    ] = None,
    mirror: Annotated[str | None, typer.Option(help="Address of a folder that holds the same archives.")] = None,
) -> None:
    """Download a dataset of the paper, compare it with its published checksum and unpack it.

    Examples:
      neotta data download cifar10-c
      neotta data download imagenet-c --part noise --part blur -o data
    """
    from neotta.cli.console import next_step
    from neotta.data.downloads import download as fetch

    root = fetch(name, output, mirror=mirror, parts=part, progress=True)
    typer.echo(printable(f"{name} is in {root}"))
    next_step(f"neotta data info {root}")


def fetch_data(spec: str) -> None:
    """Fetch data from an address into the cache, with a bar; data on disk is left alone."""
    from neotta.data.layouts.ccc import is_address
    from neotta.data.opening import open_data

    if is_address(spec) or is_address(spec.partition("=")[2]):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warned of where the data is used
            open_data(spec, progress=True).dataset()

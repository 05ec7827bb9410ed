"""Options of `neotta paper` alone; others are in `shared_options`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from neotta.cli.shared_options import HOW, WHAT

BUDGET = "How much"

Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="[ITEM]...", help="Names of items, such as corruptions (see --list), or all."),
]
ListItems = Annotated[bool, typer.Option("--list", help="Show all items and their questions.")]
Config = Annotated[
    Path | None,
    typer.Option(help="A study in a TOML or YAML file, with one or several subjects; options here override it."),
]
Domains = Annotated[
    str | None, typer.Option(help="Only these domains of the data. Default: all.", rich_help_panel=WHAT)
]
Corruptions = Annotated[
    str | None,
    typer.Option(help="Corrupt the images: fog,snow or all. Default: all, if they are clean.", rich_help_panel=WHAT),
]
Severity = Annotated[
    int | None, typer.Option(min=1, max=5, help="Of the corruptions. Default: 5.", rich_help_panel=WHAT)
]
Methods = Annotated[
    str | None,
    typer.Option(help="none,neo,tent,... Default: those of the paper that suit the model.", rich_help_panel=WHAT),
]
Samples = Annotated[
    int | None, typer.Option(min=1, help="Of each domain. Default: 512, or all.", rich_help_panel=BUDGET)
]
Seeds = Annotated[
    str | None, typer.Option(help="How many: 3, the default; or which: 2020,1234.", rich_help_panel=BUDGET)
]
SlowSamples = Annotated[
    int | None,
    typer.Option(min=1, help="The same for methods that need images. Default: as many.", rich_help_panel=BUDGET),
]
SlowSeeds = Annotated[
    str | None,
    typer.Option(help="Their seeds. Default: the same; on the digits the first.", rich_help_panel=BUDGET),
]
Evaluate = Annotated[
    int | None,
    typer.Option(help="How many other samples are scored, where they are. Default: all.", rich_help_panel=BUDGET),
]
Output = Annotated[Path, typer.Option("--output", "-o", help="Folder of the report.", rich_help_panel=HOW)]
Records = Annotated[
    Path | None,
    typer.Option(
        help="The file of results to append to (.parquet: to read only). Default: records.jsonl in the folder.",
        rich_help_panel=HOW,
    ),
]
Merge = Annotated[
    list[Path] | None,
    typer.Option(
        help="Results of another device, such as `neotta bench -o` writes; may be repeated.", rich_help_panel=HOW
    ),
]
Formats = Annotated[str, typer.Option("--format", help="Any of html,md,latex,png,csv.", rich_help_panel=HOW)]
OnlyRecorded = Annotated[
    bool,
    typer.Option("--only-recorded", help="Run nothing: report what is recorded so far.", rich_help_panel=HOW),
]
Jobs = Annotated[
    int | None, typer.Option(min=1, help="How many runs at a time. Default: one per core.", rich_help_panel=HOW)
]
OpenPage = Annotated[bool, typer.Option("--open", help="Show the page in the browser.", rich_help_panel=HOW)]

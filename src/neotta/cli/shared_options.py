"""Options that several commands take, written once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

WHAT, HOW = "What is measured", "How it is done"

Model = Annotated[
    str | None, typer.Option(help="As `neotta models` lists them. Default: digits.", rich_help_panel=WHAT)
]
Checkpoint = Annotated[
    str | None, typer.Option(help="A .safetensors file with the model's weights.", rich_help_panel=WHAT)
]
NumClasses = Annotated[int | None, typer.Option(help="Of the model.", rich_help_panel=WHAT)]
ModelOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="Another option of the model, as norm_eps=1e-12 or preprocess.resize=256; may be repeated.",
        rich_help_panel=WHAT,
    ),
]
AllowCode = Annotated[
    bool,
    typer.Option(
        "--allow-code",
        help="Run code that a file names (py:...) or that comes with a model (trust_remote_code). Read it first.",
        rich_help_panel=HOW,
    ),
]
Data = Annotated[
    str | None,
    typer.Option(help="A path, LAYOUT=PATH (as imagenet-c=PATH), or digits, the default.", rich_help_panel=WHAT),
]
SourceData = Annotated[
    str | None,
    typer.Option(
        metavar="PATH[:DOMAIN]",
        help="Clean images for methods that need some (FOA). Default: those of the data, if it has any.",
        rich_help_panel=WHAT,
    ),
]
Preset = Annotated[
    str | None,
    typer.Option(help="imagenet, tiny or cifar. Default: by the size of the images.", rich_help_panel=WHAT),
]
Cache = Annotated[
    Path | None, typer.Option(help="Folder of embeddings. Default: the user's cache folder.", rich_help_panel=HOW)
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, ... Default: a GPU if there is one.", rich_help_panel=HOW)]
Force = Annotated[bool, typer.Option("--force", help="Repeat runs that are already recorded.", rich_help_panel=HOW)]

"""Options of `neotta run` alone; others are in `shared_options`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from neotta.cli.shared_options import HOW, WHAT
from neotta.evaluate.order_options import order_help

Config = Annotated[Path | None, typer.Option(help="A plan in a TOML or YAML file; options given here override it.")]
PrintConfig = Annotated[
    bool, typer.Option("--print-config", help="Print the plan as TOML, which --config takes, and do nothing.")
]
Domains = Annotated[
    str | None, typer.Option(help="Only these: fog/5,snow or '*/5'. Default: all.", rich_help_panel=WHAT)
]
Corruptions = Annotated[
    str | None,
    typer.Option(
        help="Corrupt the images: fog,snow or all; clean is the images without a corruption, as in clean,all. "
        "Default: the data as it is; for the digits, all.",
        rich_help_panel=WHAT,
    ),
]
Severities = Annotated[
    str | None, typer.Option(help="Of the corruptions, 1 to 5: 3,5. Default: 5.", rich_help_panel=WHAT)
]
Methods = Annotated[
    list[str] | None,
    typer.Option(
        help="none,neo,tent; with options, one with several values: neo-continual:alpha=0.05|0.1,debias=true (what "
        "reads name=value belongs to the method before it); with a preset: sar@original; stacked: neo+lame. May be "
        "repeated. Default: none,neo,neo-stream.",
        rich_help_panel=WHAT,
    ),
]
Tune = Annotated[
    str | None,
    typer.Option(
        help="Choose among the values of an option (neo-continual:alpha=0.05|0.1) by accuracy on domains that are "
        "not reported: extra for the four extra corruptions, or names: speckle_noise,spatter.",
        rich_help_panel=WHAT,
    ),
]
Protocol = Annotated[
    str | None,
    typer.Option(
        help="online (the default) scores the samples adapted to; hold-out the others; continual passes through "
        "all domains; cross-domain adapts to one domain and scores another.",
        rich_help_panel=WHAT,
    ),
]
Order = Annotated[
    str | None,
    typer.Option(
        help="Of one domain: iid (the default), imbalanced, correlated, few-classes, stored or real; through all "
        "domains in one run: mixed, cameras, recurring, gradual (severity 1 to 5 and back) or changing (one "
        "corruption fades into the next at constant difficulty).",
        rich_help_panel=WHAT,
    ),
]
OrderOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help=f"An option of the order; may be repeated. {order_help()}",
        rich_help_panel=WHAT,
    ),
]
Samples = Annotated[
    str | None,
    typer.Option(
        help="To adapt to: 64, or several: 64,512; -1 for all. Default: 512, or all if fewer.", rich_help_panel=WHAT
    ),
]
HeldOutSamples = Annotated[
    int | None,
    typer.Option(
        help="Number of other samples to score, if the protocol scores others. Default: all.", rich_help_panel=WHAT
    ),
]
Seeds = Annotated[
    str | None,
    typer.Option(help="Their number: 3; or a list: 2020,1234 (one: '2020,'). Default: 3.", rich_help_panel=WHAT),
]
BatchSizes = Annotated[str | None, typer.Option(help="64, or several: 1,8,64. Default: 64.", rich_help_panel=WHAT)]
Output = Annotated[
    Path, typer.Option("--output", "-o", help="The file of results; it is added to.", rich_help_panel=HOW)
]
Predictions = Annotated[
    Path | None,
    typer.Option(
        help="Also write what each method predicts for each image, with every seed, to this .csv or .parquet file.",
        rich_help_panel=HOW,
    ),
]
Log = Annotated[
    list[str] | None,
    typer.Option(
        metavar="mlflow:URI|wandb:PROJECT|tensorboard:FOLDER",
        help="Also write what each new record holds there; may be repeated. Default: nowhere.",
        rich_help_panel=HOW,
    ),
]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Keep no embeddings for another time.", rich_help_panel=HOW)]
Jobs = Annotated[int, typer.Option(min=1, help="Number of runs at a time.", rich_help_panel=HOW)]
Engine = Annotated[str, typer.Option(help="local, or ray for a Ray cluster (RAY_ADDRESS).", rich_help_panel=HOW)]
Workers = Annotated[
    int | None, typer.Option(min=0, help="Processes that load images. Default: chosen.", rich_help_panel=HOW)
]

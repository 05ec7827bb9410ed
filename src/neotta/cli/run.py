"""`neotta run`: measure methods on data; an interrupted run continues."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neotta._processes import interrupt_code
from neotta.cli import options as shared
from neotta.cli.options import model_options, numbers, read_labels, user_cache, words
from neotta.errors import OptionError

if TYPE_CHECKING:
    from neotta.evaluate.plan import Plan

SETTINGS = ("cache", "device", "engine", "force", "predictions", "workers")
"""Entries of a plan file that say how runs are carried out, and not what is measured."""


def run(
    model: Annotated[str | None, typer.Argument(help="A model as `neotta models` lists them. Default: digits.")] = None,
    data: Annotated[
        str | None, typer.Argument(help="A folder, LAYOUT=PATH (as imagenet-c=PATH), or digits. Default: digits.")
    ] = None,
    model_option: shared.ModelOption = None,
    domains: Annotated[str | None, typer.Option(help="Only these domains: fog/5,snow or '*/5'. Default: all.")] = None,
    corruptions: Annotated[
        str | None,
        typer.Option(
            help="Corrupt the images, as fog,snow/3 (severity 3, else 5) or all. Default: none; for the digits, all."
        ),
    ] = None,
    labels: shared.Labels = None,
    group_by: Annotated[
        str | None,
        typer.Option(
            metavar="folder|REGEX",
            help="Count images that belong together as one: those of a folder, or with the same match in their path.",
        ),
    ] = None,
    methods: Annotated[
        list[str] | None,
        typer.Option(help="As none,neo,neo+lame,sar@original or tent:lr=0.001|0.01. Default: none,neo,neo-stream."),
    ] = None,
    order: Annotated[
        str | None,
        typer.Option(help="An order of the samples as `neotta orders` lists them, such as correlated:delta=0.1."),
    ] = None,
    samples: Annotated[
        str | None,
        typer.Option(help="Samples to adapt to, as 64 or 64,512; -1 for all. Default: 512, or all if fewer."),
    ] = None,
    seeds: shared.Seeds = None,
    batch_size: Annotated[str | None, typer.Option(help="Images in a batch, as 64 or 1,8,64. Default: 64.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file of results; it is added to.")] = Path(
        "results.jsonl"
    ),
    config: Annotated[
        Path | None, typer.Option(help="A plan in a TOML file; the options here override its entries.")
    ] = None,
    jobs: Annotated[int, typer.Option(help="Number of runs at a time.", min=1)] = 1,
    allow_code: shared.AllowCode = False,
) -> None:
    """Measure methods on data, and compare them. What the file of results holds is not measured again.

    Examples:
      neotta run digits digits --methods none,neo,tent --corruptions fog,snow
      neotta run timm:resnet50 photos/ --group-by folder --seeds 5 -o photos.jsonl
    """
    from neotta.evaluate.plan import split_methods

    of_model = model_options(model_option)
    names, renamed = read_labels(labels)
    options: dict[str, Any] = {
        "model": model,
        "data": data,
        "domains": words(domains),
        "corruptions": words(corruptions),
        "class_names": renamed,
        "group_by": group_by,
        "methods": methods and [each for text in methods for each in split_methods(text)],
        "order": order,
        "samples": numbers("samples", samples),
        "seeds": numbers("seeds", seeds),
        "batch_sizes": numbers("batch-size", batch_size),
    }
    plan, settings = _plan(config, options, {**of_model, **({"labels": names} if names else {})}, allow_code)
    _carry_out(plan, output, {**settings, "jobs": jobs})


def _plan(
    config: Path | None, options: dict[str, Any], of_model: dict[str, Any], allow_code: bool
) -> tuple[Plan, dict[str, Any]]:
    """The plan of a file, overridden by what was given on the command line; and the settings in the file."""
    from neotta.cli.config import read_config
    from neotta.evaluate.plan import Plan, check_code

    entries: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    if config is not None:
        entries = read_config(config, (*Plan.model_fields, *SETTINGS))
        settings = {name: entries.pop(name) for name in SETTINGS if name in entries}
        try:
            Plan.make(entries)
        except OptionError as error:
            raise OptionError(f"{str(config)!r}: {error}") from None
        from_file = {name: value for name, value in entries.items() if options.get(name) is None}
        check_code(from_file, repr(str(config)), allowed=allow_code)
    entries |= {name: value for name, value in options.items() if value is not None}
    if options["order"] is not None:
        entries = {name: value for name, value in entries.items() if name != "order_options"}
    if of_model:
        before = entries.get("model_options", {})
        for name, value in of_model.items():  # of a table, entries that are not given again stay
            both = isinstance(before.get(name), dict) and isinstance(value, dict)
            before = {**before, name: {**before[name], **value} if both else value}
        entries["model_options"] = before
    if entries.get("data", "digits") == "digits" and entries.keys().isdisjoint({"corruptions", "domains"}):
        entries["corruptions"] = ["all"]
    return Plan.make(entries), settings


def _carry_out(plan: Plan, output: Path, settings: dict[str, Any]) -> None:
    from neotta.cli.console import Console, next_step, say
    from neotta.cli.data import fetch_data
    from neotta.cli.outcome import check_suffix, show, summarise
    from neotta.cli.watch import watching
    from neotta.evaluate.measure import measure

    console = Console(highlight=False)
    predictions = settings.pop("predictions", None)
    if predictions is not None:
        check_suffix(predictions)
    cache = settings.pop("cache", None)
    settings["cache"] = user_cache() if cache in (None, True) else cache or None
    try:
        fetch_data(plan.data)
        with watching(console) as watcher:
            measured = measure(plan, path=output, predictions=predictions is not None, progress=watcher, **settings)
        show(console, measured, predictions and Path(predictions))
    except KeyboardInterrupt as interrupt:
        say(console, f"interrupted: what is done is in {output}, and the same command continues")
        raise typer.Exit(interrupt_code(interrupt)) from None
    summarise(console, output, measured.summary)
    known = measured.results.unlabelled is None
    next_step(f"neotta compare {output} -o page.html" if known else f"neotta judge {plan.model} {plan.data}")
    if measured.summary.failed:
        raise typer.Exit(1)

"""`neotta paper`: every table and figure of the paper, on any model and data."""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neotta._processes import interrupt_code
from neotta.cli import options as shared
from neotta.cli.options import numbers, user_cache, words
from neotta.errors import OptionError

if TYPE_CHECKING:
    from rich.console import Console

    from neotta.evaluate.sweep import Watcher
    from neotta.paper.study import Study

FOLDER = Path("neotta-paper")


def paper(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="ITEM", help="Items, or all. Without any, they are listed.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="A study in a TOML file; the options here override its entries.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="A model as `neotta models` lists them. Default: digits.")] = None,
    data: Annotated[
        str | None, typer.Option(help="A folder, LAYOUT=PATH (as imagenet-c=PATH), or digits. Default: digits.")
    ] = None,
    corruptions: Annotated[
        str | None, typer.Option(help="Corrupt the images, as fog,snow or all. Default: all, if they are clean.")
    ] = None,
    methods: Annotated[
        str | None, typer.Option(help="As none,neo,tent. Default: those of the paper that suit the model.")
    ] = None,
    samples: Annotated[
        int | None, typer.Option(help="Number of samples of each domain. Default: 512, or all if fewer.", min=1)
    ] = None,
    seeds: shared.Seeds = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FOLDER", help="Where the report and results go.")
    ] = FOLDER,
    formats: Annotated[str, typer.Option("--format", help="Any of html,md,latex,png,svg,pdf,csv.")] = "html",
    recorded: Annotated[
        Path | None, typer.Option(help="Run nothing: report what this file of results holds (.jsonl or .parquet).")
    ] = None,
    allow_code: shared.AllowCode = False,
) -> None:
    """Reproduce the paper's tables and figures on your model and data, beside the published values.

    Results are appended to a file as they come: run the same command again to continue it.
    A study file holds what has no option here, such as several models with their options.

    Examples:
      neotta paper corruptions --samples 64
      neotta paper all --config study.toml -o report --format html,latex,pdf
    """
    from neotta.cli.console import Console, next_step
    from neotta.paper.page import FORMATS

    console = Console(highlight=False)
    if not names:
        _list(console)
        next_step("neotta paper corruptions --samples 64; or all of them: neotta paper all")
        return
    chosen_formats = words(formats) or []
    for each in chosen_formats:
        if each not in FORMATS:
            raise OptionError(f"--format takes some of {','.join(FORMATS)}, got {each!r}")
    subject = {"model": model, "data": data, "corruptions": words(corruptions)}
    budget = {"methods": words(methods), "samples": samples, "seeds": _seeds(seeds)}
    study = _study(config, subject, budget, allow_code)
    if recorded is not None and not recorded.is_file():
        raise OptionError(f"there is no file of results {str(recorded)!r}")
    options: dict[str, Any] = {"--config": config, "--model": model, "--data": data, "--corruptions": corruptions}
    options |= {"--methods": methods, "--samples": samples, "--seeds": seeds, "--recorded": recorded}
    options |= {} if output == FOLDER else {"-o": output}
    typed = [str(word) for flag, value in options.items() if value is not None for word in (flag, value)]
    typed += ["--allow-code"] if allow_code else []
    whole = _make(console, list(names), study, output, chosen_formats, recorded, typed)
    if not whole and recorded is None:
        raise typer.Exit(1)
    next_step(f"neotta compare {shlex.quote(str(recorded or output / 'records.jsonl'))}")


def _list(console: Console) -> None:
    from neotta.cli.methods import columns
    from neotta.paper.item import items

    table = columns("item", "in the paper", "question")
    for name, item in items().items():
        table.add_row(name, item.place or "beyond the paper", item.question)
    console.print(table)


def _seeds(text: str | None) -> list[int] | None:
    from neotta.evaluate.plan import seed_list

    seeds = numbers("seeds", text)
    return seed_list(seeds) if isinstance(seeds, int) else seeds


def _study(config: Path | None, subject: dict[str, Any], budget: dict[str, Any], allow_code: bool) -> Study:
    """The study of a file, overridden by what was given on the command line."""
    from neotta.cli.config import read_config
    from neotta.evaluate.plan import check_code
    from neotta.paper.study import Study

    entries = {} if config is None else read_config(config, tuple(Study.model_fields))
    check_code(entries, repr(str(config)), allowed=allow_code)
    own = {name: value for name, value in subject.items() if value is not None}
    if own:
        if len(entries.get("subjects", [])) > 1:
            raise OptionError(f"{str(config)!r} has several subjects: set the model and data of each in the file")
        entries["subjects"] = [dict((entries.get("subjects") or [{}])[0]) | own]
    entries |= {name: value for name, value in budget.items() if value is not None}
    study = Study.make(entries)
    if "slow_seeds" not in entries and all(subject.data == "digits" for subject in study.subjects):
        return study.model_copy(update={"slow_seeds": study.seeds[:1]})  # to be seen in minutes
    return study


def _make(
    console: Console,
    names: list[str],
    study: Study,
    folder: Path,
    formats: list[str],
    recorded: Path | None,
    typed: list[str],
) -> bool:
    """Write the report; whether everything was carried out."""
    from neotta._files import write_file
    from neotta._processes import usable_cores
    from neotta.cli.console import say
    from neotta.cli.methods import columns
    from neotta.cli.watch import watching
    from neotta.paper.evidence import Evidence
    from neotta.paper.item import chosen
    from neotta.paper.page import claims, facts, paper_page, write_files
    from neotta.paper.study import shown_name

    @contextlib.contextmanager
    def show(title: str) -> Iterator[Watcher]:
        say(console, title)
        with watching(console) as watcher:
            yield watcher

    began, items, records = time.monotonic(), chosen(names), recorded or folder / "records.jsonl"
    try:
        say(console, "opening the model and the data")
        jobs, cache = study.jobs or usable_cores(), study.cache or user_cache()
        settings: dict[str, Any] = {"cache": cache, "jobs": jobs, "only_recorded": recorded is not None}
        evidence = Evidence(study, records, watching=show, **settings)
        for setting in evidence.settings:
            for method, reason in setting.left_out.items():
                say(console, f"{shown_name(method)} is left out on {setting.title}: {reason}")
        evidence.gather(items)
        reports = [item.find(evidence) for item in items]
    except KeyboardInterrupt as interrupt:
        say(console, f"interrupted: results so far are in {records}; run the same command again to continue")
        raise typer.Exit(interrupt_code(interrupt)) from None
    for report in reports:
        report.command = shlex.join(["neotta", "paper", report.item.name, *typed])
    files = write_files(folder, reports, formats) if set(formats) - {"html"} else []
    page = folder / "report.html"
    if "html" in formats:
        write_file(page, paper_page(reports, facts(evidence, time.monotonic() - began), evidence.problems))
    for report in reports:
        verdict = f" [the paper's claim {report.verdict}]" if report.verdict else ""
        say(console, f"\n{report.item.title}{verdict}\n  {report.answer}")
    if len(evidence.settings) > 1:
        held = claims(reports)
        table = columns(held.corner, *held.columns)
        for claim, entries in held.rows:
            table.add_row(claim, *(entry.text for entry in entries))
        console.print("\nWhich claims of the paper hold where", table)
    for name, reason in evidence.problems.items():
        say(console, f"not carried out: {name}: {reason}")
    say(console, f"\n{len(files)} files in {folder}" if files else "")
    if "html" in formats:
        say(console, f"The report: {page}")
    return not evidence.problems

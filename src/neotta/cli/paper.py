"""`neotta paper`: every table and figure of the paper, on any model and data."""

from __future__ import annotations

import contextlib
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from neotta._processes import interrupt_code
from neotta.cli import paper_options as options
from neotta.cli import shared_options as shared
from neotta.cli.values import model_options, numbers, user_cache, words
from neotta.errors import OptionError

if TYPE_CHECKING:
    from rich.console import Console

    from neotta.evaluate.sweep import Watcher
    from neotta.paper.evidence import Watching
    from neotta.paper.study import Study


def paper(
    names: options.Names = None,
    list_items: options.ListItems = False,
    config: options.Config = None,
    model: shared.Model = None,
    checkpoint: shared.Checkpoint = None,
    num_classes: shared.NumClasses = None,
    model_option: shared.ModelOption = None,
    data: shared.Data = None,
    domains: options.Domains = None,
    corruptions: options.Corruptions = None,
    severity: options.Severity = None,
    corruption_preset: shared.Preset = None,
    source_data: shared.SourceData = None,
    methods: options.Methods = None,
    samples: options.Samples = None,
    seeds: options.Seeds = None,
    slow_samples: options.SlowSamples = None,
    slow_seeds: options.SlowSeeds = None,
    evaluate: options.Evaluate = None,
    output: options.Output = Path("neotta-paper"),
    records: options.Records = None,
    merge: options.Merge = None,
    formats: options.Formats = "html",
    cache: shared.Cache = None,
    force: shared.Force = False,
    only_recorded: options.OnlyRecorded = False,
    jobs: options.Jobs = None,
    device: shared.Device = None,
    open_page: options.OpenPage = False,
    allow_code: shared.AllowCode = False,
) -> None:
    """Reproduce the paper's tables and figures on your model and data, beside the published values.

    By default, on the bundled digits. Results are appended to a file as they come: run the same command again to
    continue after an interruption. Items share their runs.
    """
    from neotta._processes import usable_cores
    from neotta.cli.console import Console
    from neotta.evaluate.records import Records

    console = Console(highlight=False)
    if list_items:
        _list(console)
        return
    if not names:
        raise OptionError("name an item, such as corruptions, or all: neotta paper --list shows them")
    subject = {
        "model": model,
        "data": data,
        "domains": words(domains),
        "corruptions": words(corruptions),
        "severity": severity,
        "corruption_preset": corruption_preset,
        "source": source_data,
    }
    of_model = model_options(checkpoint, num_classes, model_option, allow_code=allow_code)
    budget = {
        "methods": words(methods),
        "samples": samples,
        "seeds": _seeds("seeds", seeds),
        "slow_samples": slow_samples,
        "slow_seeds": _seeds("slow-seeds", slow_seeds),
        "evaluate": evaluate,
    }
    study = _study(config, subject, of_model, budget, allow_code)
    if records is not None and not only_recorded:
        Records(records).check_appendable()
    settings: dict[str, Any] = {"cache": cache or user_cache(), "merge": merge or (), "device": device, "force": force}
    settings |= {"jobs": jobs or usable_cores(), "only_recorded": only_recorded}
    page, whole = _make(
        console, list(names), study, output, records or output / "records.jsonl", _formats(formats), settings
    )
    if open_page and page is not None:
        typer.launch(str(page.resolve()))
    if not whole and not only_recorded:
        raise typer.Exit(1)


def _list(console: Console) -> None:
    from rich.table import Table

    from neotta.paper.catalog import items

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("item", no_wrap=True)
    table.add_column("in the paper")
    table.add_column("question")
    for name, item in items().items():
        table.add_row(name, item.place or "beyond the paper", item.question)
    console.print(table)
    console.print("\nOne item: neotta paper ITEM. Everything: neotta paper all.")


def _seeds(name: str, text: str | None) -> list[int] | None:
    from neotta.evaluate.plan import seed_list

    found = numbers(name, text)
    return seed_list(found) if isinstance(found, int) else found


def _formats(text: str) -> list[str]:
    from neotta.paper.page import FORMATS

    asked = words(text) or []
    for each in asked:
        if each not in FORMATS:
            raise OptionError(f"--format takes some of {','.join(FORMATS)}, got {each!r}")
    return asked


def _study(
    config: Path | None, subject: dict[str, Any], of_model: dict[str, Any], budget: dict[str, Any], allow_code: bool
) -> Study:
    """The study of a file, overridden by what was given on the command line."""
    from neotta.cli.config import read_config
    from neotta.evaluate.plan_code import check_code
    from neotta.paper.study import Study

    found = {} if config is None else read_config(config, tuple(Study.model_fields))
    check_code(found, repr(str(config)), allowed=allow_code)
    given = {name: value for name, value in subject.items() if value is not None}
    if given or of_model:
        if len(found.get("subjects", [])) > 1:
            raise OptionError(f"{str(config)!r} has several subjects: set the model and data of each in the file")
        one = dict((found.get("subjects") or [{}])[0]) | given
        one["model_options"] = {**one.get("model_options", {}), **of_model}
        found["subjects"] = [one]
    found |= {name: value for name, value in budget.items() if value is not None}
    study = Study.make(found)
    if "slow_seeds" not in found and all(subject.data == "digits" for subject in study.subjects):
        return study.model_copy(update={"slow_seeds": study.seeds[:1]})  # to be seen in minutes
    return study


def _make(
    console: Console,
    names: list[str],
    study: Study,
    folder: Path,
    records: Path,
    formats: list[str],
    settings: dict[str, Any],
) -> tuple[Path | None, bool]:
    """Write the report; returns its page, and whether everything was carried out."""
    from neotta._files import atomic
    from neotta.cli.outcome import say
    from neotta.paper.catalog import chosen
    from neotta.paper.evidence import Evidence
    from neotta.paper.page import Section, facts, paper_page, write_files

    began, items = time.monotonic(), chosen(names)
    try:
        say(console, "opening the model and the data")
        evidence = Evidence(study, records, watching=_watching(console, settings["jobs"]), **settings)
        for setting in evidence.settings:
            for method, reason in setting.left_out.items():
                say(console, f"{method} is left out on {setting.title}: {reason}")
        evidence.gather(items)
        sections = [Section(item, item.find(evidence), _command(item.name)) for item in items]
    except KeyboardInterrupt as interrupt:
        say(console, f"interrupted: results so far are in {records}; run the same command again to continue")
        raise typer.Exit(interrupt_code(interrupt)) from None
    files = write_files(folder, sections, formats) if set(formats) - {"html"} else []
    page = None
    if "html" in formats:
        page = folder / "report.html"
        text = paper_page(sections, facts(evidence, time.monotonic() - began), evidence.problems)
        with atomic(page) as temporary:
            temporary.write_text(text, encoding="utf-8")
    for section in sections:
        verdict = f" [{section.verdict}]" if section.verdict else ""
        say(console, f"\n{section.item.title}{verdict}\n  {section.finding.answer}")
    for name, reason in evidence.problems.items():
        say(console, f"not carried out: {name}: {reason}")
    say(console, f"\n{len(files)} files in {folder}" if files else "")
    if page is not None:
        say(console, f"The report: {page}")
    return page, not evidence.problems


def _watching(console: Console, jobs: int) -> Watching:
    from neotta.cli.outcome import say
    from neotta.cli.watch import watching

    @contextlib.contextmanager
    def show(title: str) -> Iterator[Watcher]:
        say(console, title)
        with watching(console, jobs) as watcher:
            yield watcher

    return show


FLAGS = ("--allow-code", "--force", "--only-recorded", "--open")
"""Options that take no value."""


def _command(name: str) -> str:
    """The command line as it was given, for one item."""
    words = sys.argv[1:]
    given = words[words.index("paper") + 1 :] if "paper" in words else []
    return shlex.join(["neotta", "paper", name, *_options(given)])


def _options(words: list[str]) -> list[str]:
    """The options among the words of a command line, with their values; a value may look like the name of an item."""
    found, awaited = [], False
    for word in words:
        option = not awaited and word.startswith("-")
        if option or awaited:
            found.append(word)
        complete = word in FLAGS or "=" in word or (len(word) > 2 and not word.startswith("--"))
        awaited = option and not complete
    return found

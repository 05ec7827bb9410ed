"""`neotta run`: measure methods on data; an interrupted run continues."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from neotta._processes import interrupt_code
from neotta.cli import run_options as options
from neotta.cli import shared_options as shared
from neotta.cli.values import model_options, numbers, pairs, user_cache, words
from neotta.errors import OptionError

if TYPE_CHECKING:
    from neotta.data.source import DataSource
    from neotta.evaluate.plan import Plan


def run(
    config: options.Config = None,
    print_config: options.PrintConfig = False,
    model: shared.Model = None,
    checkpoint: shared.Checkpoint = None,
    num_classes: shared.NumClasses = None,
    model_option: shared.ModelOption = None,
    data: shared.Data = None,
    domains: options.Domains = None,
    corruptions: options.Corruptions = None,
    severities: options.Severities = None,
    corruption_preset: shared.Preset = None,
    source_data: shared.SourceData = None,
    methods: options.Methods = None,
    tune: options.Tune = None,
    protocol: options.Protocol = None,
    order: options.Order = None,
    order_option: options.OrderOption = None,
    samples: options.Samples = None,
    held_out_samples: options.HeldOutSamples = None,
    seeds: options.Seeds = None,
    batch_sizes: options.BatchSizes = None,
    output: options.Output = Path("results.jsonl"),
    predictions: options.Predictions = None,
    log: options.Log = None,
    cache: shared.Cache = None,
    no_cache: options.NoCache = False,
    force: shared.Force = False,
    jobs: options.Jobs = 1,
    engine: options.Engine = "local",
    device: shared.Device = None,
    workers: options.Workers = None,
    allow_code: shared.AllowCode = False,
) -> None:
    """Measure methods on data. Without options: NEO and NEO-Stream on corrupted digits, in seconds.

    Results are added to a file as they come; what it holds is not done again, so the same command continues what was
    interrupted.
    """
    from neotta.evaluate.method_plan import split_methods

    given: dict[str, Any] = {
        "model": model,
        "data": data,
        "domains": words(domains),
        "corruptions": words(corruptions),
        "severities": numbers("severities", severities),
        "corruption_preset": corruption_preset,
        "source": source_data,
        "methods": methods and [each for text in methods for each in split_methods(text)],
        "tune": words(tune),
        "protocol": protocol,
        "order": order,
        "order_options": pairs("order-option", order_option),
        "samples": numbers("samples", samples),
        "held_out_samples": held_out_samples,
        "seeds": numbers("seeds", seeds),
        "batch_sizes": numbers("batch-sizes", batch_sizes),
    }
    allowed = allow_code or print_config  # which runs nothing
    plan = _plan(config, given, model_options(checkpoint, num_classes, model_option, allow_code=allowed), allowed)
    if print_config:
        from neotta.cli.config import write_config
        from neotta.evaluate.plan_code import code_in

        opens_code = not allow_code and any(code_in({"data": plan.data}))
        typer.echo(write_config(plan if opens_code else _with_samples(plan)), nl=False)
        return
    if no_cache and cache is not None:
        raise OptionError("--cache and --no-cache contradict each other: give one of them")
    if predictions is not None:
        from neotta.evaluate.prediction_files import check_suffix

        check_suffix(predictions)
    opening = {"cache": None if no_cache else cache or user_cache(), "device": device, "workers": workers}
    _carry_out(plan, output, predictions, log or [], opening, {"jobs": jobs, "force": force, "engine": engine})


def _plan(config: Path | None, given: dict[str, Any], of_model: dict[str, Any], allow_code: bool) -> Plan:
    """The plan of a file, overridden by what was given on the command line."""
    from neotta.cli.config import read_config
    from neotta.evaluate.plan import Plan
    from neotta.evaluate.plan_code import check_code

    found: dict[str, Any] = {}
    if config is not None:
        found = read_config(config)
        try:
            Plan.make(found)
        except OptionError as error:
            raise OptionError(f"{str(config)!r}: {error}") from None
        kept = {name: value for name, value in found.items() if given.get(name) is None}
        check_code(kept, repr(str(config)), allowed=allow_code)
    found |= {name: value for name, value in given.items() if value is not None}
    if of_model:
        before = found.get("model_options", {})
        found["model_options"] = {**before, **{name: _joined(before.get(name), of_model[name]) for name in of_model}}
    if found.get("data", "digits") == "digits" and found.keys().isdisjoint({"corruptions", "domains"}):
        found["corruptions"] = ["all"]
    return Plan.make(found)


def _joined(before: Any, given: Any) -> Any:
    """Merge tables: entries that are not given again stay."""
    return {**before, **given} if isinstance(before, dict) and isinstance(given, dict) else given


def _with_samples(plan: Plan, source: DataSource | None = None) -> Plan:
    """The plan with all samples, if none are asked for and the data has fewer than the default."""
    from neotta.data.opening import open_data
    from neotta.errors import NeottaError

    if "samples" in plan.model_fields_set:
        return plan
    try:
        source = source or open_data(plan.data, domains=plan.domains or None)
        enough = len(source.dataset(source.domains[0])) >= max(plan.samples)
    except NeottaError:  # raised again when the data is used
        enough = True
    return plan if enough else plan.model_copy(update={"samples": [-1]})


def _carry_out(
    plan: Plan, output: Path, predictions: Path | None, log: list[str], opening: dict[str, Any], how: dict[str, Any]
) -> None:
    from neotta.cli.console import Console
    from neotta.cli.fetching import fetch_data
    from neotta.cli.outcome import reported, say, show, summarise
    from neotta.cli.watch import watching
    from neotta.evaluate.left_out import left_out_lines, left_out_records, suited
    from neotta.evaluate.loggers import logging_to
    from neotta.evaluate.records import Records
    from neotta.evaluate.sweep import sweep
    from neotta.evaluate.tuning import reported_plan, tune
    from neotta.evaluate.workbench import Workbench

    console = Console(highlight=False)
    try:
        fetch_data(plan.data)
        with logging_to(log) as logged, watching(console, how["jobs"]) as watcher:
            bench = Workbench.for_plan(plan, **opening)
            if (reported_only := reported_plan(plan, bench.data.source.domains)) is not plan:
                plan = reported_only
                bench = Workbench.for_plan(plan, **{**opening, "model": bench.opened})
            plan, left_out = suited(bench, _with_samples(plan, bench.data.source))
            missing = left_out_records(plan, left_out)
            for line in left_out_lines(missing):
                say(console, line)
            if plan.tune:
                plan = tune(bench, plan, output, progress=watcher, **how)
            bench.calibrate(plan, watcher.calibrating)
            report = reported(bench, plan, always=predictions is not None)
            summary = sweep(bench, plan, output, keep=report, progress=watcher, on_record=logged, **how)
        for record in missing:
            Records(output).append(record)
        show(console, bench, output, summary, report.values(), predictions, left_out_lines(missing))
    except KeyboardInterrupt as interrupt:
        say(console, f"interrupted: what is done is in {output}, and the same command continues")
        raise typer.Exit(interrupt_code(interrupt)) from None
    summarise(console, output, summary)
    if summary.failed:
        raise typer.Exit(1)

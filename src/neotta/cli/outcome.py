"""What `neotta run` prints at the end."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from rich.console import Console

from neotta._words import printable
from neotta.cli.compare import render, shown
from neotta.errors import NeottaError
from neotta.evaluate.calibration import calibration_lines
from neotta.evaluate.comparison import compare
from neotta.evaluate.plan import Plan, Run
from neotta.evaluate.records import Records
from neotta.evaluate.sweep import Summary
from neotta.evaluate.tuning import tuning_lines
from neotta.evaluate.workbench import Workbench

SHOWN = 10
"""Number of failures that are listed."""


def reported(bench: Workbench, plan: Plan, *, always: bool) -> dict[str, Run]:
    """The runs, by key, whose predictions are reported: always, with every seed, or if the data has no labels."""
    runs = bench.runs(plan)
    try:
        if always or bench.data.dataset(bench.orders(runs[0])[-1].domains[0]).labels is None:
            from neotta.evaluate.unlabelled import reported_runs

            return {bench.key(run): run for run in reported_runs(runs, every_seed=always)}
    except NeottaError:  # raised again, or recorded, when the runs are carried out
        pass
    return {}


def show(
    console: Console,
    bench: Workbench,
    output: Path,
    summary: Summary,
    runs: Collection[Run],
    predictions: Path | None,
    remarks: Sequence[str] = (),
) -> None:
    """Print the comparison, or what can be known without labels, and write predictions if they are asked for."""
    keys = set(summary.keys)
    records = [record for record in Records(output).read() if record["key"] in keys and record["status"] == "ok"]
    labelled = any("top1" in record["metrics"] for record in records)
    if labelled:
        found = compare([shown(record) for record in records])
        found.remarks = (*remarks, *calibration_lines(records), *tuning_lines(records))
        console.print(render(found))
    if records and runs and (predictions or not labelled):
        from neotta.cli.unlabelled import render_unlabelled
        from neotta.evaluate.prediction_files import write_predictions
        from neotta.evaluate.unlabelled import predictions_by_seed, unlabelled_report

        first = next(iter(runs)).seed
        report = unlabelled_report(bench, [run for run in runs if run.seed == first], summary.results, summary.failed)
        if not labelled:
            console.print(render_unlabelled(report))
        if predictions:
            every = predictions_by_seed(bench, list(runs), summary.results, summary.failed)
            write_predictions(predictions, every, report.names)
            say(console, f"predictions: {predictions}")


def summarise(console: Console, output: Path, summary: Summary) -> None:
    """Print how many runs were done, and which failed and why."""
    done, failed = summary.done, len(summary.failed)
    say(console, f"{done} runs done, {summary.skipped} already recorded, {failed} failed: {output}")
    reasons: dict[str, list[str]] = {}
    for record in summary.failed:
        reasons.setdefault(f"{record['method']}: {record['error']}", []).append(record["domain"])
    for reason, domains in list(reasons.items())[:SHOWN]:
        where = ", ".join(dict.fromkeys(domains))
        say(console, f"failed: {reason} (runs: {len(domains)}; on {where})")
    if len(reasons) > SHOWN:
        say(console, f"... and {len(reasons) - SHOWN} other reasons: they are in the results")


def say(console: Console, text: str) -> None:
    """Print a line without markup."""
    console.print(printable(text), markup=False, highlight=False, soft_wrap=True)

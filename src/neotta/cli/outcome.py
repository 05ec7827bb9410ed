"""What `neotta run` says in the end."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from neotta.cli.compare import render
from neotta.cli.unlabelled import render_unlabelled
from neotta.evaluate.compare import compare
from neotta.evaluate.predictions import write_predictions
from neotta.evaluate.records import Records
from neotta.evaluate.sweep import Summary
from neotta.evaluate.unlabelled import unlabelled_report
from neotta.evaluate.workbench import Workbench

SHOWN = 10
"""How many failures are listed."""


def show(console: Console, bench: Workbench | None, output: Path, summary: Summary, predictions: Path | None) -> None:
    """Print the comparison, or what can be known without labels, and write predictions if they are asked for."""
    keys = set(summary.keys)
    records = [record for record in Records(output).read() if record["key"] in keys and record["status"] == "ok"]
    labelled = any("top1" in record["metrics"] for record in records)
    if labelled:
        console.print(render(compare(records)))
    if bench is not None and records and (predictions or not labelled):
        report = unlabelled_report(bench, bench.runs())
        if not labelled:
            console.print(render_unlabelled(report))
        if predictions:
            write_predictions(predictions, report.predictions, report.names)
            say(console, f"predictions: {predictions}")


def summarise(console: Console, output: Path, summary: Summary) -> None:
    """Say how many runs were done, and which failed and why."""
    done, failed = summary.done, len(summary.failed)
    say(console, f"{done} runs done, {summary.skipped} recorded before, {failed} failed: {output}")
    reasons: dict[str, list[str]] = {}
    for record in summary.failed:
        reasons.setdefault(f"{record['method']}: {record['error']}", []).append(record["domain"])
    for reason, domains in list(reasons.items())[:SHOWN]:
        where = ", ".join(dict.fromkeys(domains))
        say(console, f"failed: {reason} (runs: {len(domains)}; on {where})")
    if len(reasons) > SHOWN:
        say(console, f"... and {len(reasons) - SHOWN} other reasons: they are in the results")


def say(console: Console, text: str) -> None:
    """Print a line as it is."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)

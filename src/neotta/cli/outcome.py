"""What `neotta run` prints at the end, and the file of predictions."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from neotta._extras import need
from neotta._files import atomic
from neotta._words import printable
from neotta.cli.compare import render, shown
from neotta.cli.console import say
from neotta.cli.methods import columns
from neotta.errors import OptionError
from neotta.evaluate.answers import UNKNOWN
from neotta.evaluate.compare import compare
from neotta.evaluate.measure import Measurement
from neotta.evaluate.results import Results
from neotta.evaluate.sweep import Summary
from neotta.report.formats import comparison_sheet

if TYPE_CHECKING:
    import pandas

SHOWN = 10
"""Number of failures that are listed."""
SUFFIXES = (".csv", ".parquet")


def show(console: Console, measured: Measurement, predictions: Path | None) -> None:
    """Print the comparison, or what can be known without labels, and write predictions if they are asked for."""
    results = measured.results
    if any("top1" in record.metrics for record in results.records):
        printed = Results([shown(record) for record in results.records])
        sheet = comparison_sheet(compare(printed.frame()), printed.remarks())
        console.print(render(sheet, console.width))
    elif results.unlabelled is not None:
        table, notes = results.unlabelled
        if len(table):
            grid = columns(*table.columns)
            for row in table.itertuples(index=False):
                grid.add_row(*(Text(printable(cell)) for cell in row))  # names may hold what rich takes for markup
            console.print(grid)
        for note in notes:
            say(console, note)
    if predictions is not None and measured.runs:
        from neotta.evaluate.unlabelled import class_names
        from neotta.evaluate.unlabelled import predictions as every

        summary = measured.summary
        frame, _ = every(measured.bench, measured.runs, summary.results, summary.failed)
        write_predictions(predictions, frame, class_names(measured.bench, measured.runs[0]))
        say(console, f"predictions: {predictions}")


def summarise(console: Console, output: Path, summary: Summary) -> None:
    """Print how many runs were done, and which failed and why."""
    done, failed = summary.done, len(summary.failed)
    say(console, f"{done} runs done, {summary.skipped} already recorded, {failed} failed: {output}")
    reasons: dict[str, list[str]] = {}
    for record in summary.failed:
        reasons.setdefault(f"{record.method}: {record.error}", []).append(record.domain)
    for reason, domains in list(reasons.items())[:SHOWN]:
        where = ", ".join(dict.fromkeys(domains))
        say(console, f"failed: {reason} (runs: {len(domains)}; on {where})")
    if len(reasons) > SHOWN:
        say(console, f"... and {len(reasons) - SHOWN} other reasons: they are in the results")


def check_suffix(path: str | os.PathLike[str]) -> None:
    """Raise an `OptionError` if predictions cannot go to a file of this kind."""
    if Path(path).suffix.lower() not in SUFFIXES:
        raise OptionError(f"predictions go to a .csv or .parquet file, got {os.fspath(path)!r}")


def write_predictions(
    path: str | os.PathLike[str], predictions: pandas.DataFrame, names: Sequence[str] | None = None
) -> None:
    """Write one line per seed and sample: `id`, `domain`, `seed`, `label` if any is known, and what methods predict.

    The columns of a method are `METHOD.prediction` and `METHOD.confidence`. They are empty for a sample that the
    method did not predict. The rows of `predictions` are those of `RunResult.frame`, with `seed` and `method`; the
    first method gives the order of the samples. `names` are those of classes, instead of their numbers.
    """
    check_suffix(path)
    need("pyarrow", "a file of predictions")

    def named(classes: pandas.Series) -> pandas.Series:
        known = classes.astype("Int64").where(classes != UNKNOWN).astype(object)
        return known.map(lambda index: names[index], na_action="ignore") if names is not None else known

    of_sample = ["id", "domain", "seed"]
    frame = predictions.drop_duplicates(of_sample)[[*of_sample, "label"]]
    if (frame["label"] == UNKNOWN).all():
        frame = frame[of_sample]
    for method, mine in predictions.groupby("method", sort=False):
        answers = mine.drop_duplicates(of_sample, keep="last")[[*of_sample, "prediction", "confidence"]]
        renamed = {name: f"{method}.{name}" for name in ("prediction", "confidence")}
        frame = frame.merge(answers.rename(columns=renamed), how="left", on=of_sample)
    classes = [name for name in frame if name == "label" or name.endswith(".prediction")]
    frame = frame.assign(**{name: named(frame[name]) for name in classes})
    with atomic(Path(path)) as temporary:
        if Path(path).suffix.lower() == ".csv":
            frame.to_csv(temporary, index=False, float_format="%.6f", lineterminator="\n")
        else:
            frame.to_parquet(temporary, index=False)

"""What `neotta run` prints at the end, and what a report on unlabelled data means in plain sentences."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from neotta._extras import need
from neotta._files import atomic
from neotta._words import printable
from neotta.cli.compare import render, shown
from neotta.cli.console import say
from neotta.errors import OptionError
from neotta.evaluate.answers import UNKNOWN
from neotta.evaluate.compare import compare
from neotta.evaluate.measure import Measurement
from neotta.evaluate.results import Results
from neotta.evaluate.sweep import Summary
from neotta.evaluate.unlabelled import PredictionChange, Shift, UnlabelledReport
from neotta.report.formats import comparison_sheet

if TYPE_CHECKING:
    import pandas
    from rich.console import Group, RenderableType
    from rich.table import Table

MEANS = ("confidence", "entropy")
SHOWN = 10
"""Number of failures that are listed."""
ENOUGH = 2.0
"""The norm of a mean, in multiples of its sampling noise, from which it counts as shifted."""
SMALL = 0.2
"""The share of the spread below which a mean is too short to change much."""
LOPSIDED = 0.5
"""The share of one class from which there is a warning."""


def show(console: Console, measured: Measurement, predictions: Path | None) -> None:
    """Print the comparison, or what can be known without labels, and write predictions if they are asked for."""
    results = measured.results
    if any("top1" in record.metrics for record in results.records):
        printed = Results([shown(record) for record in results.records])
        sheet = comparison_sheet(compare(printed.frame()), printed.remarks())
        console.print(render(sheet, console.width))
    elif results.unlabelled is not None:
        console.print(render_unlabelled(results.unlabelled))
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


def render_unlabelled(report: UnlabelledReport) -> Group:
    """Make what rich prints: the data, what each method changes, and what it means."""
    from rich.console import Group
    from rich.text import Text

    def name(index: int) -> str:
        return str(index) if report.names is None else report.names[index]

    shifts, changes, classes = [], [], []
    for domain, unreadable in report.unreadable.items():
        shift = report.shifts.get(domain)
        values = (math.nan,) * 3 if shift is None else (shift.norm, shift.relative, shift.beyond_chance)
        images = str(0 if shift is None else shift.samples)
        shifts.append((domain, images, str(len(unreadable)), *map(_number, values)))
    for change in report.changes:
        where = change.method, change.domain
        share = f"{change.changed} of {change.samples} ({change.changed / change.samples:.1%})"
        means = {each: [change.mean(f"{each}_{when}") for when in ("before", "after")] for each in MEANS}
        measured = (" → ".join(map(_number, both)) for both in means.values())
        changes.append((*where, share, *measured))
        if moved := [f"{name(index)}: {first} → {then}" for index, first, then in change.classes()]:
            classes.append((*where, ", ".join(moved)))
    parts: list[RenderableType] = [Text(report.setting), Text()]
    parts += [_table(("domain", "images", "unreadable", "mean's norm", "/ spread", "/ noise"), shifts, left=1)]
    if changes:
        parts += [Text("\nWhat changes against no adaptation")]
        parts += [_table(("method", "domain", "changed", "confidence", "entropy"), changes)]
    if any(change.changed for change in report.changes):
        parts += [Text("\nClasses predicted more or less often")]
        parts += [_table(("method", "domain", "class: before → after"), classes, left=3)]
    return Group(*parts, Text(), *(Text(line) for line in explain(report)))


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2f}"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], left: int = 2) -> Table:
    from rich.table import Column, Table
    from rich.text import Text

    made = [Column(name, justify="left" if place < left else "right") for place, name in enumerate(columns)]
    table = Table(*made, box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))  # names may hold what rich takes for markup
    return table


def explain(report: UnlabelledReport) -> list[str]:
    """Explain in a few sentences what was found, what it means, and what cannot be known from it."""
    lines = []
    for domain, names in report.unreadable.items():
        if names:
            images = f"1 image ({names[0]})" if len(names) == 1 else f"{len(names)} images (the first: {names[0]})"
            lines.append(f"{domain}: {images} could not be read.")
    lines += [f"{domain}: {_explain_shift(shift)}" for domain, shift in report.shifts.items()]
    if len(report.shifts) == 1:
        lines.append(
            "Zero is where NEO takes the mean of the training data to be; this model's may lie elsewhere. To know, "
            "look at images that the model is known to do well on in the same way."
        )
    for change in report.changes:
        lines += _explain_change(change, report)
    lines += [f"{method} could not be run: {error}" for method, error in report.failed.items()]
    if any(change.changed for change in report.changes):
        lines.append(
            "Without labels nobody can tell whether the changed predictions are better. Confidence and entropy do not "
            "say it: a model can be sure and wrong, and a method that makes it less sure can make it more often right. "
            "To know, judge about thirty of them: neotta judge MODEL FOLDER"
        )
    return lines


def _explain_shift(shift: Shift) -> str:
    if shift.samples < 2:
        return "fewer than two images can be used: nothing can be said of their mean."
    far = f"the mean of {shift.samples} embeddings lies {shift.norm:.3g} from zero"
    if math.isnan(shift.beyond_chance):
        return f"{far}, and all of them are the same."
    if shift.beyond_chance < ENOUGH:
        return (
            f"{far}, and {shift.noise:.3g} is to be expected by chance: so few images show no shift, and what NEO "
            "subtracts is mostly noise. Take more images, or shrinkage='james-stein'."
        )
    said = "real, but small: expect little of NEO" if shift.relative < SMALL else "NEO has something to remove"
    return (
        f"{far}. That is {shift.relative:.2g} times the spread of the embeddings, and {shift.beyond_chance:.1f} times "
        f"what chance gives: {said}."
    )


def _explain_change(change: PredictionChange, report: UnlabelledReport) -> Iterator[str]:
    where = f"{change.method} on {change.domain}"
    if change.changed == 0:
        yield f"{where}: no prediction changes, so nothing is gained or lost."
    else:
        before, after = change.mean("confidence_before"), change.mean("confidence_after")
        yield (
            f"{where}: {change.changed} of {change.samples} predictions change "
            f"({change.changed / change.samples:.1%}), so accuracy moves by at most that much, up or down. Mean "
            f"confidence goes from {before:.2f} to {after:.2f}."
        )
    often, share = change.most_frequent()
    if share > LOPSIDED and report.classes > 2 and change.method.startswith("neo"):
        name = often if report.names is None else repr(report.names[often])
        yield (
            f"{where}: {share:.0%} of the plain predictions are class {name}. If the images really are that "
            "one-sided, re-centering can take the class itself for a shift, and do harm; if not, a shift makes the "
            "model answer so."
        )


# ---- a file of predictions

SUFFIXES = (".csv", ".parquet")


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

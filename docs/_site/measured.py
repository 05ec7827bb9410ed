"""What was measured of each method on real models: tables for its page, from the records of the results."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas

from neotta.evaluate.compare import AVERAGE, compare, difference_in
from neotta.evaluate.domains import CLEAN
from neotta.evaluate.frame import frame
from neotta.evaluate.provenance import current, older
from neotta.evaluate.records import Record, Records

HEADER = (
    "| model, images | samples x seeds, batch size | corruptions | plain | with it | difference | verdict |",
    "|---|---|---|---|---|---|---|",
)


def measured(*files: Path) -> dict[str, list[str]]:
    """By method, the lines of its table, from all files; a method that was not measured is missing."""
    found = [rows_of(path) for path in files if path.is_file()]
    rows: dict[str, list[str]] = {}
    for each, _ in found:
        for method, lines in each.items():
            rows.setdefault(method, []).extend(lines)
    outdated = {method for _, methods in found for method in methods}
    return {method: [*HEADER, *lines, *remarks(method in outdated)] for method, lines in rows.items()}


def rows_of(records: Path) -> tuple[dict[str, list[str]], set[str]]:
    """By method, the rows that a file of records gives; and the methods with records of older code.

    Every number is what `neotta compare` prints for the same records: means over domains and seeds, and differences on
    the same samples. Only runs on independent samples that were scored while adapting are shown.
    """
    runs = current([run for run in Records(records).read() if is_shown(run)])
    outdated = {run.method for run in older(runs)}
    table = compare(frame(runs))
    averages = table[table["domain"] == AVERAGE]
    rows: dict[str, list[str]] = {}
    for number, block in averages.groupby("table"):
        where, plain = domains(table[table["table"] == number]), block[block["method"] == block["baseline"]]
        for row in block[block["pairs"] > 0].itertuples() if len(plain) else ():
            note = "" if row.method == row.name else f" (`{row.method}`)"
            rows.setdefault(row.name, []).append(row_of(row, plain["mean"].iloc[0], where, note))
    return rows, outdated


def is_shown(run: Record) -> bool:
    """Whether a record belongs to the tables: independent samples, scored while adapting."""
    return run.measured and run.order == "iid"


def row_of(row: Any, plain: float, where: str, note: str) -> str:
    """The line of a method; `row` is its average in a comparison."""
    model, images = row.model.rpartition(":")[2], Path(row.data.rpartition("=")[2]).stem
    samples = "all" if row.samples < 0 else row.samples
    return (
        f"| {model}, {images}{note} | {samples} x {row.pairs}, {row.batch_size} | {where} "
        f"| {plain:.1f} | {row.mean:.1f} | {difference_in(row).text(1, '+')} | {row.verdict} |"
    )


def domains(block: pandas.DataFrame) -> str:
    """How many domains were averaged, and of which severity."""
    averaged = set(block["domain"]) - {CLEAN, AVERAGE}
    severities = sorted({domain.rpartition("/")[2] for domain in averaged if "/" in domain})
    return ", severity ".join([str(len(averaged)), *([" and ".join(severities)] if severities else [])])


def remarks(outdated: bool) -> Iterable[str]:
    """What to know beside the numbers."""
    yield ""
    yield (
        "Top-1 accuracy in %, mean over corruptions in balanced, mixed streams; differences to the plain "
        "model on the same samples, with 95 % intervals over images and seeds. `neotta compare` prints the same from "
        "the files in `docs/results`; [Results](../../results/README.md) has other streams and what follows."
    )
    if outdated:
        yield ""
        yield "Some of these runs were made by an earlier version of the code."

"""What was measured of each method on real models: tables for its page, from the records of the results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from neotta.evaluate.blocks import Block
from neotta.evaluate.comparison import compare
from neotta.evaluate.labels import labels
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
    methods = {label: variant.method for variant, label in labels(runs).items()}
    rows: dict[str, list[str]] = {}
    for block in compare(runs).blocks:
        for label, row in block_rows(block):
            method = methods[label]
            note = "" if label == method else f" (`{label}`)"
            rows.setdefault(method, []).append(row.replace("{note}", note))
    return rows, outdated


def is_shown(run: Record) -> bool:
    """Whether a record belongs to the tables: independent samples, scored while adapting."""
    return run.measured and run.order == "iid"


def block_rows(block: Block) -> Iterator[tuple[str, str]]:
    """A row for each method that was run on all domains of a block."""
    where = block.conditions
    plain = block.average.get(block.baseline or "")
    if plain is None or len(block.averaged) < 2:
        return
    model, images = where.model.rpartition(":")[2], Path(where.data.rpartition("=")[2]).stem
    samples = "all" if where.samples < 0 else where.samples
    for label, gap in block.average_differences.items():
        if label not in block.average:
            continue
        yield (
            label,
            f"| {model}, {images}{{note}} | {samples} x {gap.interval.runs}, {where.batch_size} | {domains(block)} "
            f"| {plain.mean:.1f} | {block.average[label].mean:.1f} | {gap.interval.text(1, '+')} | {gap.verdict} |",
        )


def domains(block: Block) -> str:
    """How many domains were averaged, and of which severity."""
    severities = sorted({domain.rpartition("/")[2] for domain in block.averaged if "/" in domain})
    return ", severity ".join([str(len(block.averaged)), *([" and ".join(severities)] if severities else [])])


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

"""Accuracy over the batches of runs, as a table and as a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from neotta.errors import DataError
from neotta.evaluate.blocks import Step, over_time
from neotta.evaluate.comparison import METRICS, Comparison
from neotta.report.charts import Panel, Series, line_chart
from neotta.report.figures import Figure
from neotta.report.formats import Section, Sheet
from neotta.report.grids import Entry, Grid, number

TITLE = "accuracy in % by batch"
CAPTION = (
    "Accuracy while adapting, over the batches of a run; all shifted domains and seeds together. Band: 95 % interval "
    "over images and seeds."
)
Steps = Mapping[str, Sequence[Step]]


def batches_table(by_method: Steps) -> Grid:
    places = list(dict.fromkeys((step.first, step.last) for steps in by_method.values() for step in steps))
    by_place = {label: {step[:2]: step.accuracy for step in steps} for label, steps in by_method.items()}
    rows = []
    for first, last in sorted(places):
        accuracies = (by_place[label].get((first, last)) for label in by_method)
        entries = (Entry() if each is None else Entry(number(each, METRICS["top1"])) for each in accuracies)
        rows.append((str(first) if first == last else f"{first}–{last}", tuple(entries)))
    return Grid("batch", tuple(by_method), tuple(rows))


def batches_figure(by_method: Steps, name: str = "over-time", title: str = "Accuracy over time") -> Figure:
    series = {
        label: Series(
            [(step.first + step.last) / 2 for step in steps],
            [step.accuracy.mean for step in steps],
            [step.accuracy.ends for step in steps],
        )
        for label, steps in by_method.items()
    }
    return Figure(name, title, line_chart(Panel(series, "batch", "accuracy in %")), rows(by_method), CAPTION)


def drawn_over_time(comparison: Comparison) -> Figure:
    """The figure of the block with the most methods."""
    block = max(comparison.blocks, key=lambda block: len(over_time(block)))
    return batches_figure(over_time(block), title=f"Accuracy over time {block.title}".strip())


def rows(by_method: Steps) -> list[dict[str, Any]]:
    return [
        {"method": label, "first_batch": step.first, "last_batch": step.last, "mean": step.accuracy.mean,
         "half_width": step.accuracy.half_width, "seeds": step.accuracy.runs}
        for label, steps in by_method.items()
        for step in steps
    ]  # fmt: skip


def over_time_sheet(comparison: Comparison) -> Sheet:
    sections, numbers = [], []
    for block in comparison.blocks:
        steps = over_time(block)
        left = [label for label in block.methods if label not in steps]
        said = (
            [f"Left out, since their records do not say which samples were right: {', '.join(left)}."] if left else []
        )
        sections.append(Section(block.title, [("", batches_table(steps))] if steps else [], said))
        numbers += [{"conditions": block.title, **row} for row in rows(steps)]
    if not numbers:
        raise DataError("no record says which samples were right: measure again with 'neotta run' to another file")
    return Sheet(TITLE, comparison.shared, sections, [CAPTION.replace("Band", "±")], numbers)

"""Accuracy over the batches of runs, as a table and as a figure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neotta.errors import DataError
from neotta.evaluate.compare import cells_of, mean_in
from neotta.evaluate.domains import CLEAN
from neotta.evaluate.estimates import METRICS
from neotta.evaluate.metrics import Interval
from neotta.evaluate.statistics import accuracy
from neotta.report.charts import Panel, Series, line_chart
from neotta.report.figures import Figure
from neotta.report.formats import Section, Sheet, plain_rows
from neotta.report.grids import Entry, Grid

if TYPE_CHECKING:
    import pandas

STEPS = 20
"""Number of steps in which a run is shown, at most; each has one batch or several."""
TITLE = "accuracy in % by batch"
CAPTION = (
    "Accuracy while adapting, over the batches of a run; all shifted domains and seeds together. Band: 95 % interval "
    "over images and seeds."
)


def over_time(runs: pandas.DataFrame, steps: int = STEPS) -> pandas.DataFrame:
    """The accuracy of each method over the batches of runs under the same conditions: a row for each step.

    All shifted domains and seeds are taken together. Methods without answers of each image are left out.
    """
    import pandas

    cells = cells_of(runs, METRICS["top1"])
    shifted = {domain for domain, _ in cells if domain != CLEAN} or {domain for domain, _ in cells}
    by_method: dict[str, list[Any]] = {}
    for (domain, label), by_seed in cells.items():
        if domain in shifted:
            by_method.setdefault(label, []).extend(by_seed.values())
    known = {label: rows for label, rows in by_method.items() if rows and all(row.answers is not None for row in rows)}
    batches = max((int(row.answers.batch.max()) + 1 for rows in known.values() for row in rows), default=0)
    width, found = max(1, -(-batches // steps)), []
    for label, rows in known.items():
        seeds, domains = len({row.seed for row in rows}), list(dict.fromkeys(row.domain for row in rows))
        for start in range(0, batches, width):
            stop = min(start + width, batches)
            inside = [(row.answers.batch >= start) & (row.answers.batch < stop) for row in rows]
            right, units = (
                [getattr(row.answers, column)[here] for row, here in zip(rows, inside, strict=True)]
                for column in ("right", "unit")
            )
            if any(map(len, right)):
                places = [domains.index(row.domain) for row in rows]
                mean, low, high = (100 * value for value in accuracy(right, units, domains=places))
                each = Interval.between(mean, low, high, seeds).within(100)
                about = {"method": label, "first_batch": start + 1, "last_batch": stop, "mean": each.mean}
                found.append(
                    {**about, "half_width": each.half_width, "low": each.ends[0], "high": each.ends[1], "seeds": seeds}
                )
    columns = ["method", "first_batch", "last_batch", "mean", "half_width", "low", "high", "seeds"]
    return pandas.DataFrame(found, columns=columns)


def batches_table(steps: pandas.DataFrame) -> Grid:
    methods, rows = tuple(dict.fromkeys(steps["method"])), []
    for (first, last), mine in steps.groupby(["first_batch", "last_batch"]):
        means = {row.method: METRICS["top1"].text(mean_in(row)) for row in mine.itertuples()}
        entries = tuple(Entry(means[label]) if label in means else Entry() for label in methods)
        rows.append((str(first) if first == last else f"{first}–{last}", entries))
    return Grid("batch", methods, tuple(rows))


def batches_figure(steps: pandas.DataFrame, name: str = "over-time", title: str = "Accuracy over time") -> Figure:
    series = {
        label: Series(((mine["first_batch"] + mine["last_batch"]) / 2).tolist(), mine["mean"].tolist(),
                      list(zip(mine["low"], mine["high"], strict=True)))
        for label, mine in steps.groupby("method", sort=False)
    }  # fmt: skip
    return Figure(name, title, line_chart(Panel(series, "batch", "accuracy in %")), plain_rows(steps), CAPTION)


def over_time_report(runs: pandas.DataFrame, table: pandas.DataFrame) -> tuple[Sheet, Figure]:
    """Tables of all runs that are compared, and the figure of those with the most methods."""
    titles, sections, numbers, drawn = table.groupby("table")["title"].first(), [], [], []
    for place, mine in runs.groupby("table"):
        steps, title = over_time(mine), titles[place]
        left = [label for label in dict.fromkeys(mine["method"]) if label not in set(steps["method"])]
        said = (
            [f"Left out, since their records do not say which samples were right: {', '.join(left)}."] if left else []
        )
        sections.append(Section(title, [("", batches_table(steps))] if len(steps) else [], said))
        numbers += [{"conditions": title, **row} for row in plain_rows(steps)]
        drawn.append((steps["method"].nunique(), title, steps))
    if not numbers:
        raise DataError("no record says which samples were right: measure again with 'neotta run' to another file")
    _, title, steps = max(drawn, key=lambda each: each[0])
    sheet = Sheet(TITLE, table["shared"].iloc[0], sections, [CAPTION.replace("Band", "±")], numbers)
    return sheet, batches_figure(steps, title=f"Accuracy over time {title}".strip())

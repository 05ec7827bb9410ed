"""What came of an evaluation: tables, comparisons and figures from the records of runs."""

from __future__ import annotations

import html
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from neotta.errors import DataError
from neotta.evaluate.compare import ESTIMATES, compare, difference_in, failures, mean_in, notes
from neotta.evaluate.estimates import METRICS
from neotta.evaluate.frame import frame
from neotta.evaluate.provenance import current
from neotta.evaluate.records import Record, Records, write_records
from neotta.evaluate.sweep import left_out_lines
from neotta.evaluate.tuning import tuning_lines

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from neotta.evaluate.unlabelled import Unlabelled


@dataclass(frozen=True, repr=False)
class Results:
    """The records of runs, and what can be made of them. A notebook shows the comparison.

    Attributes:
        records: One for each run; and for each method that was left out, which says why.
        unlabelled: What can be known of unlabelled data; None if the data has labels.

    Example:
        >>> import neotta
        >>> results = neotta.evaluate("digits", "digits", methods="none,neo", seeds=1, samples=64, progress=False)
        >>> list(results.compare()["method"])
        ['none', 'neo']
    """

    records: list[Record]
    unlabelled: Unlabelled | None = field(default=None, compare=False)

    def __len__(self) -> int:
        return len(self.records)

    @property
    def failed(self) -> list[Record]:
        """The records of runs that failed; `error` says why."""
        return [record for record in self.records if record.failed]

    def frame(self) -> pandas.DataFrame:
        """A row for each run and domain, columns for its conditions and metrics: see `neotta.evaluate.frame.frame`.

        Of a file without runs, such as that of `neotta bench`, it has the entries of each record as columns.
        """
        import pandas

        runs = frame(current(self.records))
        return runs if len(runs) else pandas.json_normalize([record.entries() for record in self.records])

    def compare(self, baseline: str = "none", metric: str = "top1") -> pandas.DataFrame:
        """One row for each domain and method: mean with its interval, difference to the baseline, and verdict.

        Args:
            baseline: The method, or its label, that differences refer to.
            metric: `top1`, `top5`, `ece`, `ece_equal_mass`, `nll`, `brier`, `entropy` or `confidence`.

        Raises:
            DataError: No run has this metric, as accuracy without labels.
        """
        table = compare(self.frame(), metric, baseline=baseline)
        return table[["conditions", "domain", "method", *ESTIMATES]].astype({"method": object})

    def remarks(self) -> list[str]:
        """What was left out, and how options were chosen."""
        records = current(self.records)
        return [*left_out_lines(records), *tuning_lines(records)]

    def plot(self, baseline: str = "none", metric: str = "top1") -> Figure:
        """Dots with intervals: the difference of each method to the baseline, domain by domain."""
        from matplotlib.figure import Figure

        table = compare(self.frame(), metric, baseline=baseline)
        rows = table[table["pairs"] > 0]
        if not len(rows):
            raise DataError(f"there is nothing to draw: no method but {baseline!r} was run on the same samples")
        domains, methods = list(dict.fromkeys(rows["domain"])), list(dict.fromkeys(rows["method"]))
        figure = Figure(figsize=(7, 1.2 + 0.3 * len(rows)), layout="constrained")
        axes = figure.subplots()
        for number, method in enumerate(methods):
            mine = rows[rows["method"] == method]
            places = [domains.index(domain) + 0.8 * (number + 0.5) / len(methods) - 0.4 for domain in mine["domain"]]
            ends = [(mine["difference"] - mine[end]).abs().fillna(0) for end in ("difference_low", "difference_high")]
            axes.errorbar(mine["difference"], places, xerr=ends, fmt="o", capsize=3, label=method)
        axes.axvline(0, color="grey", linewidth=0.8)
        axes.set_yticks(range(len(domains)), domains)
        axes.invert_yaxis()
        axes.set_xlabel(f"{METRICS[metric].title}: difference to {baseline}")
        axes.legend()
        return figure

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the records to a new file, `.jsonl` or `.parquet`; `neotta.results` reads it."""
        write_records(self.records, path)

    def _repr_html_(self) -> str:
        table, notes = self._table()
        if table is None:
            return html.escape(repr(self))
        remarks = "".join(f"<li>{html.escape(line)}</li>" for line in notes)
        return f"{table.to_html(index=False, na_rep='')}<ul>{remarks}</ul>"

    def __repr__(self) -> str:
        table, _ = self._table()
        return f"<Results of {len(self)} records>" if table is None else str(table.to_string(index=False, na_rep=""))

    def _table(self) -> tuple[pandas.DataFrame | None, list[str]]:
        """What is shown of the results, with notes; None if there is nothing to compare."""
        if self.unlabelled is not None:
            return self.unlabelled.table, self.unlabelled.notes
        if not any("top1" in record.metrics for record in self.records):
            return None, []
        table = compare(self.frame())
        return _shown(table), [*self.remarks(), *failures(table), *notes(table)]


def results(path: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> Results:
    """Read the records of one or more files. Lines that cannot be read are skipped with a warning.

    Raises:
        DataError: A file does not exist, or holds something else than records.

    Example:
        >>> import tempfile, pathlib, neotta
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "results.jsonl"
        >>> _ = neotta.evaluate("digits", "digits", methods="neo", seeds=1, samples=64, path=path, progress=False)
        >>> neotta.results(path).frame()["method"].tolist()
        ['neo']
    """
    paths = [path] if isinstance(path, (str, os.PathLike)) else list(path)
    for each in paths:
        if not Path(each).exists():
            raise DataError(f"there is no file of records {os.fspath(each)!r}")
    return Results([record for each in paths for record in Records(each).read()])


def _shown(table: pandas.DataFrame) -> pandas.DataFrame:
    """A comparison as it is read: numbers with their intervals, and verdicts."""
    import pandas

    metric = METRICS[table["metric"].iloc[0]]
    shown = pandas.DataFrame(
        {
            "conditions": row.conditions,
            "domain": row.domain,
            "method": row.method,
            "mean": metric.text(mean_in(row)),
            "difference": metric.text(difference_in(row), "+") if row.pairs else "",
            "verdict": row.verdict or "",
        }
        for row in table.itertuples()
    )
    return shown.drop(columns="conditions") if shown["conditions"].nunique() == 1 else shown

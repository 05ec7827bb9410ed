"""What came of an evaluation: tables, comparisons and figures from the records of runs."""

from __future__ import annotations

import html
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from neotta.errors import DataError
from neotta.evaluate.comparison import Comparison, compare
from neotta.evaluate.metrics import Interval
from neotta.evaluate.provenance import current
from neotta.evaluate.records import Record, Records, write_records
from neotta.evaluate.sweep import left_out_lines
from neotta.evaluate.tuning import tuning_lines
from neotta.evaluate.verdicts import RELATIVE_ERROR, Difference

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from neotta.evaluate.unlabelled import UnlabelledReport


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
    unlabelled: UnlabelledReport | None = field(default=None, compare=False)

    def __len__(self) -> int:
        return len(self.records)

    @property
    def failed(self) -> list[Record]:
        """The records of runs that failed; `error` says why."""
        return [record for record in self.records if record.failed]

    def frame(self) -> pandas.DataFrame:
        """One row for each run, one column for each thing varied or measured.

        Nested entries become columns with dots: `metrics.top1`, `options.alpha`.
        """
        import pandas

        return pandas.DataFrame([dict(_flat(record.entries())) for record in self.records])

    def comparison(self, baseline: str = "none", metric: str = "top1") -> Comparison:
        """The methods side by side, with notes; `compare` is the table of it."""
        records = current(self.records)
        comparison = compare(records, metric, baseline=baseline)
        comparison.remarks = (*left_out_lines(records), *tuning_lines(records))
        return comparison

    def compare(self, baseline: str = "none", metric: str = "top1") -> pandas.DataFrame:
        """One row for each domain and method: mean with its interval, difference to the baseline, and verdict.

        Args:
            baseline: The method, or its label, that differences refer to.
            metric: `top1`, `top5`, `ece`, `nll`, `entropy` or `confidence`.

        Raises:
            DataError: No run has this metric, as accuracy without labels.
        """
        import pandas

        return pandas.DataFrame(comparison_rows(self.comparison(baseline, metric)))

    def plot(self, baseline: str = "none", metric: str = "top1") -> Figure:
        """Dots with intervals: the difference of each method to the baseline, domain by domain."""
        from matplotlib.figure import Figure

        comparison = self.comparison(baseline, metric)
        rows = [row for row in comparison_rows(comparison) if row["difference"] is not None]
        if not rows:
            raise DataError(f"there is nothing to draw: no method but {baseline!r} was run on the same samples")
        domains = list(dict.fromkeys(row["domain"] for row in rows))
        methods = list(dict.fromkeys(row["method"] for row in rows))
        figure = Figure(figsize=(7, 1.2 + 0.3 * len(rows)), layout="constrained")
        axes = figure.subplots()
        for number, method in enumerate(methods):
            mine = [row for row in rows if row["method"] == method]
            places = [domains.index(row["domain"]) + 0.8 * (number + 0.5) / len(methods) - 0.4 for row in mine]
            values = [row["difference"] for row in mine]
            ends = [[_length(row, "difference_low") for row in mine], [_length(row, "difference_high") for row in mine]]
            axes.errorbar(values, places, xerr=ends, fmt="o", capsize=3, label=method)
        axes.axvline(0, color="grey", linewidth=0.8)
        axes.set_yticks(range(len(domains)), domains)
        axes.invert_yaxis()
        axes.set_xlabel(f"{comparison.metric.title}: difference to {baseline}")
        axes.legend()
        return figure

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the records to a new file, `.jsonl` or `.parquet`; `neotta.results` reads it."""
        write_records(self.records, path)

    def _repr_html_(self) -> str:
        table, notes = self._table()
        if table is None:
            return html.escape(repr(self))
        return f"{table.to_html(index=False)}<ul>{''.join(f'<li>{html.escape(line)}</li>' for line in notes)}</ul>"

    def __repr__(self) -> str:
        table, _ = self._table()
        return f"<Results of {len(self)} records>" if table is None else str(table.to_string(index=False))

    def _table(self) -> tuple[pandas.DataFrame | None, list[str]]:
        """What is shown of the results, with notes; None if there is nothing to compare."""
        if self.unlabelled is not None:
            return _unlabelled_frame(self.unlabelled), ["Without labels nobody can tell which predictions are better."]
        if not any("top1" in record.metrics for record in self.records):
            return None, []
        comparison = self.comparison()
        return _shown(comparison), comparison.notes()


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
        if not Path(each).is_file():
            raise DataError(f"there is no file of records {os.fspath(each)!r}")
    return Results([record for each in paths for record in Records(each).read()])


class _Cell(NamedTuple):
    where: str  # the conditions
    domain: str
    method: str
    mean: Interval
    failed: int = 0
    gap: Difference | None = None


def _cells(comparison: Comparison) -> Iterator[_Cell]:
    for block in comparison.blocks:
        where = ", ".join(filter(None, (comparison.shared, block.title)))
        for domain in block.domains:
            for label in block.methods:
                if (cell := block.cells.get((domain, label))) is not None:
                    gap = block.differences.get((domain, label))
                    yield _Cell(where, domain, label, cell.interval, len(cell.failed), gap)
        for label, mean in block.average.items():
            yield _Cell(where, "average", label, mean, 0, block.average_differences.get(label))
        for label, mean in block.relative_error.items():
            yield _Cell(where, RELATIVE_ERROR.name, label, mean)


def comparison_rows(comparison: Comparison) -> list[dict[str, Any]]:
    """One row per domain and method, with all digits; None where there is no number."""
    rows = []
    for where, domain, label, mean, failed, gap in _cells(comparison):
        about = {"conditions": where, "domain": domain, "method": label}
        measured = {"mean": mean.mean, "half_width": mean.half_width, "seeds": mean.runs, "failed": failed}
        names = ("difference", "difference_low", "difference_high", "pvalue")
        numbers = (gap.interval.mean, *gap.interval.ends, gap.pvalue) if gap else (math.nan,) * 4
        row = {**about, **measured, **dict(zip(names, numbers, strict=True)), "verdict": gap.verdict if gap else None}
        rows.append({name: None if value != value else value for name, value in row.items()})  # NaN is not itself
    return rows


def _flat(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in record.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        elif not isinstance(value, Mapping):
            yield prefix + name, value


def _length(row: Mapping[str, Any], end: str) -> float:
    return 0.0 if row[end] is None else abs(row[end] - row["difference"])


def _shown(comparison: Comparison) -> pandas.DataFrame:
    """A comparison as it is read: numbers with their intervals, and verdicts."""
    import pandas

    digits = comparison.metric.digits
    frame = pandas.DataFrame(
        {
            "conditions": each.where,
            "domain": each.domain,
            "method": each.method,
            "mean": each.mean.text(digits) if each.mean.runs else "–",
            "difference": each.gap.interval.text(digits, "+") if each.gap else "",
            "verdict": each.gap.verdict if each.gap else "",
        }
        for each in _cells(comparison)
    )
    return frame.drop(columns="conditions") if frame["conditions"].nunique() == 1 else frame


def _unlabelled_frame(report: UnlabelledReport) -> pandas.DataFrame:
    import pandas

    return pandas.DataFrame(
        {
            "method": change.method,
            "domain": change.domain,
            "samples": change.samples,
            "changed predictions": change.changed,
            "confidence before": round(change.mean("confidence_before"), 3),
            "confidence after": round(change.mean("confidence_after"), 3),
        }
        for change in report.changes
    )

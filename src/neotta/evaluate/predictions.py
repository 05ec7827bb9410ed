"""What methods predicted, sample by sample: kept without the logits, and written to CSV or Parquet."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neotta._extras import need
from neotta._files import atomic
from neotta.errors import OptionError
from neotta.evaluate.outputs import Outputs


@dataclass(frozen=True)
class Predictions:
    """The predicted class of each sample, and how sure the model was.

    Attributes:
        ids: The samples.
        domains: Where each comes from.
        labels: Their classes, None where a label is not known.
        classes: The predicted ones, (N,) int64.
        confidence: Their probabilities, (N,).
    """

    ids: tuple[str, ...]
    domains: tuple[str, ...]
    labels: tuple[int | None, ...]
    classes: NDArray[np.int64]
    confidence: NDArray[np.float64]

    @classmethod
    def of(cls, outputs: Outputs) -> Predictions:
        """Read them off the outputs of a run."""
        names = tuple(outputs.ids), tuple(outputs.domains), tuple(outputs.labels)
        if not outputs.ids:
            return cls(*names, np.empty(0, np.int64), np.empty(0))
        best = outputs.tensor().softmax(dim=1).max(dim=1)
        return cls(*names, best.indices.numpy(), best.values.double().numpy())

    @classmethod
    def joined(cls, parts: Sequence[Predictions]) -> Predictions:
        """One after the other."""
        return cls(
            tuple(name for part in parts for name in part.ids),
            tuple(domain for part in parts for domain in part.domains),
            tuple(label for part in parts for label in part.labels),
            np.concatenate([part.classes for part in parts]),
            np.concatenate([part.confidence for part in parts]),
        )

    def rows(self) -> dict[tuple[str, str], int]:
        """Where each sample stands, by domain and id."""
        return {place: row for row, place in enumerate(zip(self.domains, self.ids, strict=True))}


def write_predictions(
    path: str | os.PathLike[str], predictions: Mapping[str, Predictions], names: Sequence[str] | None = None
) -> None:
    """Write one line per sample: `id`, `domain`, `label` if any is known, and for each method what it predicts.

    The columns of a method are `METHOD.prediction` and `METHOD.confidence`. A sample that a method has no prediction
    for leaves them empty.

    Args:
        path: Ends in `.csv` or `.parquet`; the file appears at once and whole.
        predictions: By method; the first gives the order of the samples.
        names: Of the classes; numbers are written if they are not known.

    Raises:
        OptionError: The path has another suffix.
        MissingExtraError: Parquet was asked for, and pyarrow is not installed.
    """
    target = Path(path)
    writers = {".csv": _write_csv, ".parquet": _write_parquet}
    if target.suffix.lower() not in writers:
        raise OptionError(f"predictions go to a .csv or .parquet file, got {str(target)!r}")
    columns = _columns(predictions, names)
    with atomic(target) as temporary:
        writers[target.suffix.lower()](temporary, columns)


def _columns(predictions: Mapping[str, Predictions], names: Sequence[str] | None) -> dict[str, list[Any]]:
    def named(index: int | None) -> str | int | None:
        return index if index is None or names is None else names[index]

    samples: dict[tuple[str, str], int | None] = {}
    for each in predictions.values():
        for place, row in each.rows().items():
            samples.setdefault(place, each.labels[row])
    columns: dict[str, list[Any]] = {
        "id": [name for _, name in samples],
        "domain": [domain for domain, _ in samples],
    }
    if any(label is not None for label in samples.values()):
        columns["label"] = [named(label) for label in samples.values()]
    for method, each in predictions.items():
        rows = each.rows()
        found = [rows.get(place) for place in samples]
        columns[f"{method}.prediction"] = [None if row is None else named(int(each.classes[row])) for row in found]
        columns[f"{method}.confidence"] = [None if row is None else float(each.confidence[row]) for row in found]
    return columns


def _write_csv(path: Path, columns: Mapping[str, list[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for row in zip(*columns.values(), strict=True):
            writer.writerow([f"{value:.6f}" if isinstance(value, float) else value for value in row])


def _write_parquet(path: Path, columns: Mapping[str, list[Any]]) -> None:
    pyarrow, parquet = (need(name, "writing Parquet files") for name in ("pyarrow", "pyarrow.parquet"))
    parquet.write_table(pyarrow.table(dict(columns)), path)

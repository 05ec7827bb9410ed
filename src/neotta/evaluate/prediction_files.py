"""What methods predicted, sample by sample, in a CSV or Parquet file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from neotta._extras import need
from neotta._files import atomic
from neotta.errors import OptionError
from neotta.evaluate.predictions import RunResult

SUFFIXES = (".csv", ".parquet")


def check_suffix(path: str | os.PathLike[str]) -> None:
    """Check the suffix of a file for predictions.

    Raises:
        OptionError: It is neither `.csv` nor `.parquet`.
    """
    if Path(path).suffix.lower() not in SUFFIXES:
        raise OptionError(f"predictions go to a .csv or .parquet file, got {os.fspath(path)!r}")


def write_predictions(
    path: str | os.PathLike[str], predictions: Mapping[str, RunResult], names: Sequence[str] | None = None
) -> None:
    """Write one line per sample: `id`, `domain`, `label` if any is known, and for each method what it predicts.

    The columns of a method are `METHOD.prediction` and `METHOD.confidence`. They are empty for a sample that the
    method did not predict.

    Args:
        path: Ends in `.csv` or `.parquet`; the file appears only when it is complete.
        predictions: By method; the first gives the order of the samples.
        names: Class names; without them, class numbers are written.

    Raises:
        OptionError: The path has another suffix.
        MissingExtraError: Parquet was asked for, and pyarrow is not installed.
    """
    check_suffix(path)
    import pandas

    frame = pandas.DataFrame(_columns(predictions, names), dtype=object)
    confidences = [name for name in frame if name.endswith(".confidence")]
    frame = frame.astype(dict.fromkeys(confidences, "float64"))
    with atomic(Path(path)) as temporary:
        if Path(path).suffix.lower() == ".csv":
            frame.to_csv(temporary, index=False, float_format="%.6f", lineterminator="\n")
            return
        need("pyarrow", "writing Parquet files")
        frame.to_parquet(temporary, index=False)


def _columns(predictions: Mapping[str, RunResult], names: Sequence[str] | None) -> dict[str, list[Any]]:
    def named(index: int | None) -> str | int | None:
        return index if index is None or names is None else names[index]

    samples: dict[tuple[str, str], int | None] = {}
    for each in predictions.values():
        for place, label in zip(each.rows(), each.labels, strict=True):
            samples.setdefault(place, label)
    columns: dict[str, list[Any]] = {
        "id": [name for _, name in samples],
        "domain": [domain for domain, _ in samples],
    }
    if any(label is not None for label in samples.values()):
        columns["label"] = [named(label) for label in samples.values()]
    for method, each in predictions.items():
        rows, classes, confidence = each.rows(), each.stats.predicted.tolist(), each.stats.confidence.tolist()
        found = [rows.get(place) for place in samples]
        columns[f"{method}.prediction"] = [None if row is None else named(classes[row]) for row in found]
        columns[f"{method}.confidence"] = [None if row is None else confidence[row] for row in found]
    return columns

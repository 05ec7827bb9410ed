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
    path: str | os.PathLike[str],
    predictions: Mapping[int, Mapping[str, RunResult]],
    names: Sequence[str] | None = None,
) -> None:
    """Write one line per seed and sample: `id`, `domain`, `seed`, `label` if any is known, and what methods predict.

    The columns of a method are `METHOD.prediction` and `METHOD.confidence`. They are empty for a sample that the
    method did not predict.

    Args:
        path: Ends in `.csv` or `.parquet`; the file appears only when it is complete.
        predictions: By seed and method; the first method gives the order of the samples.
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


def _columns(predictions: Mapping[int, Mapping[str, RunResult]], names: Sequence[str] | None) -> dict[str, list[Any]]:
    def named(index: int | None) -> str | int | None:
        return index if index is None or names is None else names[index]

    samples: dict[tuple[int, str, str], int | None] = {}
    answers: dict[str, dict[tuple[int, str, str], tuple[int, float]]] = {}
    for seed, methods in predictions.items():
        for method, each in methods.items():
            places = [(seed, domain, name) for domain, name in each.rows()]
            for place, label in zip(places, each.labels, strict=True):
                samples.setdefault(place, label)
            found = zip(each.stats.predicted.tolist(), each.stats.confidence.tolist(), strict=True)
            answers.setdefault(method, {}).update(zip(places, found, strict=True))
    columns: dict[str, list[Any]] = {
        "id": [name for _, _, name in samples],
        "domain": [domain for _, domain, _ in samples],
        "seed": [seed for seed, _, _ in samples],
    }
    if any(label is not None for label in samples.values()):
        columns["label"] = [named(label) for label in samples.values()]
    for method, given in answers.items():
        both = [given.get(place, (None, None)) for place in samples]
        columns[f"{method}.prediction"] = [named(predicted) for predicted, _ in both]
        columns[f"{method}.confidence"] = [confidence for _, confidence in both]
    return columns

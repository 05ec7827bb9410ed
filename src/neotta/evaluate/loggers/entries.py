"""What a record holds, as loggers take it: settings, numbers, and accuracy over the batches."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from neotta.errors import DataError
from neotta.evaluate.answers import unpack
from neotta.evaluate.records import Record

NUMBERS = ("metrics", "per_domain")
"""Entries of a record that hold what was measured, by name."""
COUNTS = ("count", "seconds", "seconds_without_encoder", "unreadable", "not_adapted")
"""Single numbers that were measured."""
ONLY_WHOLE = ("answers", "per_class", "reliability", "sha256")
"""Entries that are found only in the whole record: lists, and packed bits."""


class Entries(NamedTuple):
    """A record in parts.

    Attributes:
        name: Method, domain and seed.
        settings: What was run, on what, by which code; nested entries have names such as `options.lr`.
        numbers: What was measured, such as `metrics.top1`.
        curve: Accuracy in percent of each batch; empty if it is not known.
        whole: The record as JSON.
    """

    name: str
    settings: dict[str, str]
    numbers: dict[str, float]
    curve: list[float]
    whole: str


def entries(record: Record) -> Entries:
    """Take a record apart."""
    kept = {name: value for name, value in record.items() if name not in ONLY_WHOLE}
    measured = {name: kept.pop(name) for name in (*NUMBERS, *COUNTS) if name in kept}
    flat = dict(_flat(measured))
    name = " ".join(str(record.get(part, "")) for part in ("method", "domain")) + f" seed {record.get('seed', '')}"
    return Entries(
        name,
        {path: _text(value) for path, value in _flat(kept)},
        {path: float(value) for path, value in flat.items() if isinstance(value, (int, float))},
        _curve(record),
        json.dumps(record, indent=1, sort_keys=True),
    )


def _flat(entry: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in entry.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{before}{name}.")
        elif value is not None:
            yield f"{before}{name}", value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _curve(record: Record) -> list[float]:
    try:
        answers = unpack(record)
    except DataError:
        return []
    if answers is None:
        return []
    seen = answers.batch[answers.known]
    right = np.bincount(seen, weights=answers.right[answers.known])
    count = np.bincount(seen)
    return [100 * float(good) / int(all_) for good, all_ in zip(right, count, strict=True) if all_]

"""Where a method does harm: gains over the plain model by kind of stream and domain, from records."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from neotta.errors import DataError, OptionError
from neotta.evaluate.labels import Variant, labels, natural
from neotta.evaluate.records import Record

HURT = 1.0
"""Points of accuracy that count as harm."""
PLAIN = "none"


class Cell(NamedTuple):
    kind: str
    domain: str
    seed: int

    def __str__(self) -> str:
        return f"{self.kind} on {self.domain}, seed {self.seed}"


Cells = dict[str, dict[Cell, float]]
"""Gain over the plain model in points: by method, then by stream."""


class Summary(NamedTuple):
    """What a method does over many streams, in points."""

    mean: float
    low: float  # the 5th percentile
    worst: float
    hurt: float  # share of the streams that lose more than one point, in percent
    cells: int  # number of streams

    @classmethod
    def of(cls, gains: Iterable[float]) -> Summary:
        values = list(gains)
        hurt = 100 * sum(value < -HURT for value in values) / len(values)
        return cls(statistics.fmean(values), float(np.percentile(values, 5)), min(values), hurt, len(values))


class Harm(NamedTuple):
    """What a method does to one model."""

    title: str  # the model, its data, and the severity of the corruptions
    kinds: dict[str, dict[Cell, float]]  # the gain on each stream, by kind of stream

    def every(self) -> dict[Cell, float]:
        return {cell: gain for each in self.kinds.values() for cell, gain in each.items()}


def harm_of(records: Iterable[Record], method: str, kinds: Collection[str] = ()) -> list[Harm]:
    """What a method gains and costs on each model, by kind of stream; each severity, and clean images, apart."""
    subjects: dict[str, dict[str, list[Record]]] = {}
    for record in records:
        if record.measured:
            title = f"{record.model}, {record.data}"
            subjects.setdefault(title, {}).setdefault(record.order_text, []).append(record)
    if not subjects:
        raise DataError("no record is of a run that was scored")
    _check("kind of stream", kinds, {kind for mine in subjects.values() for kind in mine})
    gains_of = {title: gains(mine) for title, mine in subjects.items()}
    _check("method", [method], {name for cells in gains_of.values() for name in cells})
    return [
        Harm(f"{title}, {severity}", by_kind)
        for title, cells in gains_of.items()
        for severity, by_kind in _by_severity(cells.get(method, {}), kinds).items()
    ]


def gains(records: Mapping[str, Sequence[Record]]) -> Cells:
    """What methods gain over the plain model on the same samples; records by kind of stream."""
    every: Cells = {}
    for cell, by_method in accuracies(records).items():
        for method, value in by_method.items():
            if method != PLAIN and PLAIN in by_method:
                every.setdefault(method, {})[cell] = value - by_method[PLAIN]
    return every


def accuracies(records: Mapping[str, Sequence[Record]]) -> dict[Cell, dict[str, float]]:
    by_cell: dict[Cell, dict[str, float]] = {}
    names = {variant: name.removesuffix(" shrinkage=None") for variant, name in labels(_scored(records)).items()}
    for kind, mine in records.items():
        for record in _scored({kind: mine}):
            for domain, measured in record.by_domain.items():
                if (top1 := measured.get("top1")) is not None:
                    by_cell.setdefault(Cell(kind, domain, record.seed), {})[names[Variant.of(record)]] = top1
    return by_cell


def _scored(records: Mapping[str, Sequence[Record]]) -> list[Record]:
    every = [record for mine in records.values() for record in mine]
    return [record for record in every if not record.failed and record.metrics.get("top1") is not None]


def _by_severity(cells: Mapping[Cell, float], kinds: Collection[str]) -> dict[str, dict[str, dict[Cell, float]]]:
    by_severity: dict[str, dict[str, dict[Cell, float]]] = {}
    for cell, gain in cells.items():
        if not kinds or cell.kind in kinds:
            name, slash, severity = cell.domain.rpartition("/")
            group = f"severity {severity}" if slash and severity.isdigit() else name or cell.domain
            by_severity.setdefault(group, {}).setdefault(cell.kind, {})[cell] = gain
    return dict(sorted(by_severity.items(), key=lambda entry: natural(entry[0])))


def _check(what: str, names: Iterable[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            raise OptionError(f"the records have no {what} {name!r}, only {', '.join(sorted(known))}")

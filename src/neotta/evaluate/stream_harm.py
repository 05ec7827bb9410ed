"""Where a method does harm: gains over the plain model by kind of stream and domain, from records."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from neotta.errors import DataError, OptionError
from neotta.evaluate.labels import Variant, labels, natural
from neotta.evaluate.records import Record

HURT = 1.0
"""Points of accuracy that count as harm."""
PLAIN = "none"

Cells = dict[str, dict[tuple[str, str], float]]
"""Gain over the plain model in points, seeds averaged: by method, then by kind of stream and domain."""


class Summary(NamedTuple):
    """What a method does over many cells, in points."""

    mean: float
    worst: float  # the worst cell
    hurt: float  # share of the cells that lose more than one point, in percent
    cells: int  # number of cells

    @classmethod
    def of(cls, gains: Iterable[float]) -> Summary:
        values = list(gains)
        hurt = 100 * sum(value < -HURT for value in values) / len(values)
        return cls(statistics.fmean(values), min(values), hurt, len(values))

    @property
    def hurt_cells(self) -> int:
        """Number of the cells that lose more than one point."""
        return round(self.hurt * self.cells / 100)


class Harm(NamedTuple):
    """What a method does to one model."""

    title: str  # the model, its data, and the severity of the corruptions
    kinds: dict[str, dict[str, float]]  # the gain of each domain, by kind of stream

    def every(self) -> dict[str, float]:
        return {f"{kind} on {domain}": gain for kind, each in self.kinds.items() for domain, gain in each.items()}


def harm_of(records: Iterable[Record], method: str, kinds: Collection[str] = ()) -> list[Harm]:
    """What a method gains and costs on each model, by kind of stream; each severity, and clean images, apart."""
    subjects: dict[str, dict[str, list[Record]]] = {}
    for record in records:
        kind = (record.stream_options or {}).get("kind")
        if kind is not None:
            title = f"{record.model}, {record.data}"
            subjects.setdefault(title, {}).setdefault(str(kind), []).append(record)
    if not subjects:
        raise DataError("no record has a kind of stream: they come from 'neotta paper real-streams' or --order real")
    _check("kind of stream", kinds, {kind for mine in subjects.values() for kind in mine})
    gains_of = {title: gains(mine) for title, mine in subjects.items()}
    _check("method", [method], {name for cells in gains_of.values() for name in cells})
    return [
        Harm(f"{title}, {severity}", by_kind)
        for title, cells in gains_of.items()
        for severity, by_kind in _by_severity(cells.get(method, {}), kinds).items()
    ]


def gains(records: Mapping[str, Sequence[Record]]) -> Cells:
    """What methods gain over the plain model on the same samples, seeds averaged; records by kind of stream."""
    every: dict[str, dict[tuple[str, str], list[float]]] = {}
    for (kind, domain, _), by_method in accuracies(records).items():
        for method, value in by_method.items():
            if method != PLAIN and PLAIN in by_method:
                every.setdefault(method, {}).setdefault((kind, domain), []).append(value - by_method[PLAIN])
    return {method: {at: statistics.fmean(values) for at, values in each.items()} for method, each in every.items()}


def accuracies(records: Mapping[str, Sequence[Record]]) -> dict[tuple[str, str, int], dict[str, float]]:
    """Accuracies by kind of stream, domain and seed, then by method."""
    by_place: dict[tuple[str, str, int], dict[str, float]] = {}
    names = {variant: name.removesuffix(" shrinkage=None") for variant, name in labels(_scored(records)).items()}
    for kind, mine in records.items():
        for record in _scored({kind: mine}):
            for domain, measured in record.by_domain.items():
                if (top1 := measured.get("top1")) is not None:
                    by_place.setdefault((kind, domain, record.seed), {})[names[Variant.of(record)]] = top1
    return by_place


def _scored(records: Mapping[str, Sequence[Record]]) -> list[Record]:
    every = [record for mine in records.values() for record in mine]
    return [record for record in every if not record.failed and record.metrics.get("top1") is not None]


def _by_severity(
    cells: Mapping[tuple[str, str], float], kinds: Collection[str]
) -> dict[str, dict[str, dict[str, float]]]:
    by_severity: dict[str, dict[str, dict[str, float]]] = {}
    for (kind, domain), gain in cells.items():
        if not kinds or kind in kinds:
            name, slash, severity = domain.rpartition("/")
            group = f"severity {severity}" if slash and severity.isdigit() else name or domain
            by_severity.setdefault(group, {}).setdefault(kind, {})[domain] = gain
    return dict(sorted(by_severity.items(), key=lambda entry: natural(entry[0])))


def _check(what: str, names: Iterable[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            raise OptionError(f"the records have no {what} {name!r}, only {', '.join(sorted(known))}")

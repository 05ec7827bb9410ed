"""Records of many people, ranked where they compare.

Two rows compare if they were measured with the same weights, the same preprocessing, and the same samples in the same
order, all of them told by hashes that records carry: what a model or a folder is called does not matter. Rows that do
not compare are put into different groups.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from neotta.errors import DataError
from neotta.evaluate.answers import unpack
from neotta.evaluate.blocks import by_domain
from neotta.evaluate.domains import CLEAN
from neotta.evaluate.labels import Conditions, Variant, labels
from neotta.evaluate.metrics import Interval
from neotta.evaluate.records import Record, content_key
from neotta.evaluate.reproduce import reproducing_command
from neotta.evaluate.verdicts import METRICS, Difference, Value, gap_of, mean_of

Place = tuple[str, int]
"""A domain, or the domains of a sequence, and a seed."""


class Identity(NamedTuple):
    """What has to be the same for rows to be ranked together, as hashes."""

    weights: str
    preprocess: str
    orders: str


@dataclass
class Row:
    """One method with its options, by one version of the code.

    Attributes:
        label: The method, and the options that set it apart.
        preset: The preset of its options.
        code: A hash of the code that made it.
        versions: The versions of neotta.
        files: Where it was found; several if their numbers agree.
        records: By domain and seed.
        accuracy: Mean top-1 accuracy in percent over the shifted domains.
        error: Mean expected calibration error.
        seconds: Mean time of a sample in a run, in seconds.
        with_encoder: Whether this includes the encoder.
        cost: A measurement of `neotta bench` of this method on a model of this name, if there is one.
        behind: How it differs from the best of its group.
        rank: Its place in the group.
        command: What measures it again.
        differs: Whether another row of the same code and options has other numbers.
    """

    label: str
    preset: str
    code: str
    versions: list[str]
    files: list[str]
    records: dict[Place, Record]
    accuracy: Interval
    error: Interval
    seconds: float = math.nan
    with_encoder: bool = False
    cost: Record | None = None
    behind: Difference | None = None
    rank: int = 0
    command: str = ""
    differs: bool = False


@dataclass
class Group:
    """Rows that compare.

    Attributes:
        identity: What they share, as hashes.
        conditions: What they share, in words.
        models: What the model is called.
        data: What the data is called.
        domains: The domains.
        seeds: The seeds.
        rows: The best first.
    """

    identity: Identity
    conditions: Conditions
    models: list[str]
    data: list[str]
    domains: list[str]
    seeds: list[int]
    rows: list[Row] = field(default_factory=list)

    @property
    def order(self) -> str:
        """The protocol and the order in words."""
        return self.conditions.words(["protocol", "stream", "stream_options", "source_domain", "batch_size"])

    @property
    def severities(self) -> list[str]:
        """The severities in the names of the domains."""
        return sorted({name.rpartition("/")[2] for name in self.domains if "/" in name})


def leaderboard(files: Mapping[str, Iterable[Record]]) -> list[Group]:
    """Rank the records of several files.

    Args:
        files: Records by the name of their file.

    Returns:
        Groups of rows that compare, those with the most rows first.
    """
    every = {name: list(records) for name, records in files.items()}
    costs = [record for records in every.values() for record in records if record.get("kind") == "cost"]
    measured = {name: [record for record in records if _usable(record)] for name, records in every.items()}
    names = labels(record for records in measured.values() for record in records)
    found: dict[tuple[Any, ...], dict[Place, Record]] = {}
    for name, records in measured.items():
        for record in records:
            about = Conditions.of(record)._replace(model="", data="", sequence=())
            key = (name, Variant.of(record), record.get("preset"), record.get("code"), _preprocess(record), about)
            found.setdefault(key, {})[_domain(record), int(record["seed"])] = record
    groups: dict[Identity, list[Row]] = {}
    for (name, variant, preset, code, preprocess, about), runs in found.items():
        identity = Identity(about.weights, preprocess, _orders(runs))
        row = _row(names[variant], str(preset or "paper"), str(code or ""), name, runs)
        row.cost = _cost(costs, next(iter(runs.values())))
        groups.setdefault(identity, []).append(row)
    made = [_group(identity, rows) for identity, rows in groups.items()]
    return sorted(made, key=lambda group: (-len(group.rows), group.models, group.data, group.order, group.identity))


def _usable(record: Record) -> bool:
    """Whether a record can be ranked: its run succeeded, has labels, and is known and whole."""
    top1 = (record.get("metrics") or {}).get("top1")
    if record.get("status") != "ok" or not record.get("manifests") or not isinstance(top1, (int, float)):
        return False
    if any(record.get(name) is None for name in ("model", "data", "seed", "samples", "batch_size")):
        return False
    try:
        unpack(record)
    except DataError:
        return False
    return math.isfinite(top1)


def _domain(record: Record) -> str:
    source = f"{record['source_domain']} → " if record.get("source_domain") else ""
    return source + ", ".join(record.get("domains") or [record["domain"]])


def _orders(records: Mapping[Place, Record]) -> str:
    return content_key({"orders": sorted([*place, *record["manifests"]] for place, record in records.items())})


def _preprocess(record: Record) -> str:
    return content_key({"preprocess": record.get("preprocess")})


def _row(label: str, preset: str, code: str, file: str, records: dict[Place, Record]) -> Row:
    took = [(_seconds(record), record) for record in records.values()]
    samples = sum(int(record.get("count") or 0) for _, record in took)
    versions = {str(record.get("packages", {}).get("neotta", "?")) for record in records.values()}
    return Row(
        label,
        preset,
        code,
        sorted(versions),
        [file],
        records,
        mean_of(_values(records, "top1"), METRICS["top1"]),
        mean_of(_values(records, "ece"), METRICS["ece"]),
        math.fsum(float(seconds) for seconds, _ in took) / samples if samples else math.nan,
        all("seconds" in record for _, record in took),
        command=reproducing_command(list(records.values())),
    )


def _seconds(record: Record) -> float:
    names = (name for name in ("seconds", "seconds_without_encoder") if name in record)
    return float(record[name]) if (name := next(names, None)) else math.nan


def _values(records: Mapping[Place, Record], metric: str) -> list[list[Value]]:
    """For each seed its values in the shifted domains; in the clean one, if there is no other."""
    found: dict[int, dict[str, Value]] = {}
    for (place, seed), record in records.items():
        answers = unpack(record)
        for domain, measured in by_domain(record):
            name = f"{place}: {domain}"
            known = answers and answers.of_domain(domain)
            number = measured.get(metric)
            value = math.nan if number is None else float(number)
            found.setdefault(seed, {})[name] = Value(value, tuple(record["manifests"]), known)
    whole = {seed: dict(sorted(values.items())) for seed, values in sorted(found.items())}
    shifted = [[v for name, v in values.items() if not name.endswith(f": {CLEAN}")] for values in whole.values()]
    return [some or list(values.values()) for some, values in zip(shifted, whole.values(), strict=True)]


def _cost(costs: Sequence[Record], record: Record) -> Record | None:
    """The last measurement of the cost of this method, with these options, on a model of this name."""
    same = [
        cost
        for cost in costs
        if (cost.get("model"), cost.get("method")) == (record["model"], record["method"])
        and Variant.of({**cost, "options": cost.get("options") or {}}) == Variant.of(record)
    ]
    return same[-1] if same else None


def _group(identity: Identity, rows: list[Row]) -> Group:
    rows = _merged(rows)
    rows.sort(key=lambda row: (-row.accuracy.mean, row.label, row.code))
    best = _values(rows[0].records, "top1")
    for place, row in enumerate(rows):
        level = place > 0 and row.accuracy.mean == rows[place - 1].accuracy.mean
        row.rank = rows[place - 1].rank if level else place + 1
        if place:
            mine = _values(row.records, "top1")
            pairs = [list(zip(one, other, strict=True)) for one, other in zip(mine, best, strict=True)]
            row.behind = gap_of(pairs, METRICS["top1"])
        row.differs = any(
            other is not row and (other.label, other.preset, other.code) == (row.label, row.preset, row.code)
            for other in rows
        )
    records = [record for row in rows for record in row.records.values()]
    return Group(
        identity,
        Conditions.of(records[0]),
        sorted({str(record["model"]) for record in records}),
        sorted({str(record["data"]) for record in records}),
        list(dict.fromkeys(name for record in records for name in record.get("domains") or [record["domain"]])),
        sorted({int(record["seed"]) for record in records}),
        rows,
    )


def _merged(rows: Iterable[Row]) -> list[Row]:
    """Rows of several files whose code, options and numbers are the same become one, which names all files."""
    found: dict[str, Row] = {}
    for row in rows:
        numbers = sorted([*place, round(record["metrics"]["top1"], 3)] for place, record in row.records.items())
        key = json.dumps([row.label, row.preset, row.code, numbers])
        if key in found:
            found[key].files += [name for name in row.files if name not in found[key].files]
        else:
            found[key] = row
    return list(found.values())

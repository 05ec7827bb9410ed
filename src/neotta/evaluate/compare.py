"""From records to a comparison: means over seeds, differences on the same samples, and what they say."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from neotta.errors import DataError, OptionError
from neotta.evaluate.comparison import METRICS, Block, Cell, Comparison, Difference, Failure, Metric, Value
from neotta.evaluate.domains import CLEAN
from neotta.evaluate.labels import UNKNOWN, Conditions, Variant, differing, labels, natural
from neotta.evaluate.metrics import Interval, interval, verdict
from neotta.evaluate.records import Record


def compare(records: Iterable[Record], metric: str = "top1", *, baseline: str = "none") -> Comparison:
    """Put methods side by side.

    Args:
        records: Of runs, as `Records.read` gives them; others are passed over.
        metric: Which number: `top1`, `top5`, `ece`, `nll`, `entropy` or `confidence`.
        baseline: The method, or its label, that differences refer to.

    Raises:
        OptionError: There is no such metric, or no such baseline, or several.
        DataError: No record is of a run, or none has the metric.
    """
    if metric not in METRICS:
        raise OptionError(f"metric is {metric!r}: choose one of {', '.join(METRICS)}")
    runs = [record for record in records if record.get("status") == "failed" or "metrics" in record]
    if not runs:
        raise DataError("there is no record of a run: make some with 'neotta run'")
    names = labels(runs)
    base = _baseline(names, baseline)
    weights = _weights(runs)
    grouped: dict[Conditions, list[Record]] = {}
    for run in runs:
        grouped.setdefault(Conditions.of(run, weights.get(run.get("model"), UNKNOWN)), []).append(run)
    order = sorted(grouped, key=Conditions.order)
    varied = differing(order)
    blocks = tuple(_block(key, key.words(varied), grouped[key], names, METRICS[metric], base) for key in order)
    measured = any(cell.values for block in blocks for cell in block.cells.values())
    if not measured and any(run.get("status") != "failed" for run in runs):
        raise DataError(f"no run has {metric!r}, which may need labels: try the metric 'entropy' or 'confidence'")
    unvaried = [name for name in Conditions._fields if name not in (*varied, "weights", "evaluate", "sequence")]
    return Comparison(METRICS[metric], blocks, order[0].words(unvaried))


def _weights(runs: Sequence[Record]) -> dict[Any, str]:
    """The weights of each model, where there is no doubt: a run that failed early does not know its own."""
    found: dict[Any, set[str]] = {}
    for run in runs:
        if run.get("weights"):
            found.setdefault(run.get("model"), set()).add(str(run["weights"]))
    return {model: known.pop() for model, known in found.items() if len(known) == 1}


def _baseline(names: Mapping[Variant, str], asked: str) -> str | None:
    """The label of the baseline; None if it is the usual one and was not run."""
    if asked in names.values():
        return asked
    found = [label for variant, label in names.items() if variant.method == asked]
    if len(found) == 1:
        return found[0]
    if found:
        raise OptionError(f"there are several runs of {asked!r}: choose the baseline among {_list(found)}")
    if asked == "none":
        return None
    raise OptionError(f"the baseline {asked!r} was not run: there are {_list(names.values())}")


@dataclass
class _Collected:
    """The records of a block, sorted into cells; `base` finds the baseline's values by domain, seed and samples."""

    cells: dict[tuple[str, str], Cell] = field(default_factory=dict)
    base: dict[tuple[Any, ...], float] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    replaced: int = 0


def _block(
    conditions: Conditions,
    title: str,
    records: Sequence[Record],
    names: Mapping[Variant, str],
    metric: Metric,
    baseline: str | None,
) -> Block:
    found = _collect(records, names, metric, baseline)
    domains = tuple(sorted({domain for domain, _ in found.cells}, key=_domain_order))
    ran = {label for _, label in found.cells}
    block = Block(
        conditions=conditions,
        title=title,
        methods=tuple(label for label in names.values() if label in ran),
        baseline=baseline if baseline in ran else None,
        domains=domains,
        cells=found.cells,
        averaged=tuple(domain for domain in domains if domain != CLEAN),
        failures=tuple(found.failures),
        replaced=found.replaced,
    )
    for label in block.methods:
        _aggregate(block, label, metric, found.base)
    return block


def _collect(
    records: Sequence[Record], names: Mapping[Variant, str], metric: Metric, baseline: str | None
) -> _Collected:
    found = _Collected()
    failed = []
    for record in records:
        label, seed = names[Variant.of(record)], int(record.get("seed", 0))
        if record.get("status") == "failed":
            missed = [found.cells.setdefault((domain, label), Cell()) for domain in _domains(record)]
            failed.append((Failure(label, str(record["domain"]), seed, str(record.get("error"))), missed))
            continue
        samples = (*record.get("manifests", ()), record.get("count"))
        for domain, measured in _by_domain(record):
            cell = found.cells.setdefault((domain, label), Cell())
            number = measured.get(metric.name)
            if number is None or not math.isfinite(number):
                continue
            found.replaced += seed in cell.values and cell.values[seed].samples != samples
            cell.values[seed] = Value(float(number), samples)
            if label == baseline and record.get("manifests"):
                found.base[domain, seed, samples] = float(number)
    for failure, missed in failed:  # a run that failed early has another key than when it succeeds later
        still = [cell for cell in missed if failure.seed not in cell.values]
        for cell in still:
            cell.failed.add(failure.seed)
        if still:
            found.failures.append(failure)
    return found


def _aggregate(block: Block, label: str, metric: Metric, base: Mapping[tuple[Any, ...], float]) -> None:
    """Fill in what a block says of one method: differences, averages and mCE."""
    cells = {domain: block.cells.get((domain, label), Cell()).values for domain in block.domains}
    pairs = {
        domain: {
            seed: (value.number, base[domain, seed, value.samples])
            for seed, value in values.items()
            if (domain, seed, value.samples) in base
        }
        for domain, values in cells.items()
    }
    if metric.name == "top1" and (relative := _mce(pairs)) is not None:
        block.mce[label] = relative
    several = block.averaged if len(block.averaged) > 1 else ()
    means = [_mean([cells[domain][seed].number for domain in several]) for seed in _complete(cells, several)]
    if means:
        block.average[label] = interval(means)
    if label == block.baseline:
        return
    gaps = {
        domain: {seed: mine - theirs for seed, (mine, theirs) in values.items()} for domain, values in pairs.items()
    }
    for domain, found in gaps.items():
        if found:
            block.differences[domain, label] = _difference(list(found.values()), metric)
    means = [_mean([gaps[domain][seed] for domain in several]) for seed in _complete(gaps, several)]
    if means:
        block.average_differences[label] = _difference(means, metric)


def _mce(pairs: Mapping[str, Mapping[int, tuple[float, float]]]) -> Interval | None:
    """Mean corruption error from accuracies and those of the baseline, by domain and seed."""
    kinds: dict[str, list[str]] = {}
    for domain in pairs:
        if found := re.fullmatch(r"(.+)/[1-5]", domain):
            kinds.setdefault(found[1], []).append(domain)
    per_seed = []
    for seed in _complete(pairs, [domain for group in kinds.values() for domain in group]):
        ratios = []
        for group in kinds.values():
            mine, theirs = (math.fsum(100 - pairs[domain][seed][which] for domain in group) for which in (0, 1))
            if theirs == 0:
                return None
            ratios.append(mine / theirs)
        per_seed.append(100 * _mean(ratios))
    return interval(per_seed) if per_seed else None


def _domains(record: Record) -> list[str]:
    return list(record.get("domains") or [record["domain"]])


def _by_domain(record: Record) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The metrics of each domain that a run went through."""
    if record.get("per_domain"):
        yield from record["per_domain"].items()
    else:
        yield record["domain"], record["metrics"]


def _difference(values: list[float], metric: Metric) -> Difference:
    found = interval(values)
    if metric.better == "lower":
        return Difference(found, verdict(found._replace(mean=-found.mean)))
    said = verdict(found)
    if metric.better is None:
        said = {"helps": "higher", "hurts": "lower"}.get(said, said)
    return Difference(found, said)


def _complete(values: Mapping[str, Mapping[int, Any]], domains: Sequence[str]) -> list[int]:
    """The seeds that all of these domains have."""
    if not domains:
        return []
    return sorted(set.intersection(*(set(values[domain]) for domain in domains)))


def _domain_order(domain: str) -> tuple[Any, ...]:
    """Clean first, then the corruptions as the paper orders them, then all others by name."""
    from neotta.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS

    known = [CLEAN, *CORRUPTIONS, *EXTRA_CORRUPTIONS]
    kind = domain.split("/")[0]
    return (known.index(kind) if kind in known else len(known), natural(domain))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _list(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)

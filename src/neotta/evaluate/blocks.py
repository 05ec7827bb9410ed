"""One table of a comparison: the runs of several methods under the same conditions."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, NamedTuple

from neotta.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS
from neotta.evaluate.answers import Answers, unpack
from neotta.evaluate.domains import CLEAN
from neotta.evaluate.labels import Conditions, Variant, natural
from neotta.evaluate.metrics import NOTHING, Interval
from neotta.evaluate.records import Record
from neotta.evaluate.statistics import accuracy
from neotta.evaluate.verdicts import Difference, Metric, Value, differences, gap_of, mean_of, means_of


class Failure(NamedTuple):
    method: str
    domain: str
    seed: int
    error: str


@dataclass
class Cell:
    """All runs of one method on one domain, by seed, and their mean."""

    values: dict[int, Value] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)
    interval: Interval = NOTHING

    @property
    def samples(self) -> frozenset[Any]:
        """What was seen: cells with other seeds or samples cannot be ranked."""
        return frozenset((seed, value.samples) for seed, value in self.values.items())


@dataclass
class Block:
    conditions: Conditions
    title: str  # the conditions that set this block apart from the others; empty if there is only one
    methods: tuple[str, ...]
    baseline: str | None  # the label that differences refer to, or None if it was not run here
    domains: tuple[str, ...]  # in the order of the paper
    cells: dict[tuple[str, str], Cell]  # by domain and label; a pair that was never run is missing
    averaged: tuple[str, ...] = ()  # the domains behind the average: all but the clean one
    # by label: the unweighted mean over domains, then over seeds. Only for methods that have all these domains
    average: dict[str, Interval] = field(default_factory=dict)
    # by domain and label, to the baseline's run on the same samples. Intervals and verdicts are corrected for the
    # number of domains
    differences: dict[tuple[str, str], Difference] = field(default_factory=dict)
    # by label: mean over domains, then over seeds
    average_differences: dict[str, Difference] = field(default_factory=dict)
    # by label: for each corruption the errors summed over severities, divided by the baseline's, then the mean over
    # corruptions, per seed and in percent (Hendrycks & Dietterich, 2019, with this baseline instead of AlexNet); then
    # the mean over seeds. Only from top-1, for domains named `corruption/severity`, and not where the baseline makes
    # no error
    relative_error: dict[str, Interval] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)  # runs that failed and were not made up for later
    replaced: int = 0  # number of values that were replaced by a later one of the same seed on other samples

    def samples(self, label: str) -> frozenset[Any]:
        """What a method has seen in the domains behind the average."""
        cells = {domain: self.cells.get((domain, label), Cell()) for domain in self.averaged}
        return frozenset((domain, seen) for domain, cell in cells.items() for seen in cell.samples)

    @property
    def seeds(self) -> list[int]:
        """The seeds of the runs that succeeded."""
        return sorted({seed for cell in self.cells.values() for seed in cell.values})


def make_block(
    conditions: Conditions,
    title: str,
    records: Sequence[Record],
    names: Mapping[Variant, str],
    metric: Metric,
    baseline: str | None,
) -> Block:
    """Put the records of one block side by side; `names` are the labels of the methods."""
    block = Block(conditions, title, methods=(), baseline=baseline, domains=(), cells={})
    base = _collect(block, records, names, metric)
    ran = {label for _, label in block.cells}
    block.methods = tuple(label for label in names.values() if label in ran)
    block.baseline = baseline if baseline in ran else None
    block.domains = tuple(sorted({domain for domain, _ in block.cells}, key=_domain_order))
    block.averaged = tuple(domain for domain in block.domains if domain != CLEAN)
    for label in block.methods:
        _aggregate(block, label, metric, base)
    return block


def _collect(
    block: Block, records: Sequence[Record], names: Mapping[Variant, str], metric: Metric
) -> dict[tuple[Any, ...], Value]:
    """Fill the cells of a block; returns the values of the baseline, by domain, seed and samples."""
    base: dict[tuple[Any, ...], Value] = {}
    failed = []
    for record in records:
        label, seed = names[Variant.of(record)], record.seed
        if record.failed:
            missed = [block.cells.setdefault((name, label), Cell()) for name in record.domains or [record.domain]]
            failed.append((Failure(label, record.domain, seed, str(record.error)), missed))
            continue
        samples = (*record.manifests, record.count)
        answers, held_out = unpack(record), record.scores_others
        for domain, measured in record.by_domain.items():
            cell = block.cells.setdefault((domain, label), Cell())
            number = measured.get(metric.name)
            if number is None or not math.isfinite(number):
                continue
            block.replaced += seed in cell.values and cell.values[seed].samples != samples
            cell.values[seed] = Value(float(number), samples, answers and answers.of_domain(domain), held_out)
            if label == block.baseline and record.manifests:
                base[domain, seed, samples] = cell.values[seed]
    for failure, missed in failed:  # a run that failed early has another key than when it succeeds later
        still = [cell for cell in missed if failure.seed not in cell.values]
        for cell in still:
            cell.failed.add(failure.seed)
        if still:
            block.failures.append(failure)
    return base


def _aggregate(block: Block, label: str, metric: Metric, base: Mapping[tuple[Any, ...], Value]) -> None:
    cells = {domain: block.cells.get((domain, label), Cell()).values for domain in block.domains}
    runs_by_domain = {domain: [[value] for value in values.values()] for domain, values in cells.items() if values}
    for domain, mean in means_of(runs_by_domain, metric).items():
        block.cells[domain, label].interval = mean
    pairs = {
        domain: {
            seed: (value, base[domain, seed, value.samples])
            for seed, value in values.items()
            if (domain, seed, value.samples) in base
        }
        for domain, values in cells.items()
    }
    if metric.name == "top1" and (relative := _relative_error(pairs)) is not None:
        block.relative_error[label] = relative
    several = block.averaged if len(block.averaged) > 1 else ()
    if runs := [[cells[domain][seed] for domain in several] for seed in _complete(cells, several)]:
        block.average[label] = mean_of(runs, metric)
    if label == block.baseline:
        return
    paired = {domain: [[pair] for pair in by_seed.values()] for domain, by_seed in pairs.items() if by_seed}
    block.differences |= {(domain, label): gap for domain, gap in differences(paired, metric).items()}
    if seeds := _complete(pairs, several):
        both = [[pairs[domain][seed] for domain in several] for seed in seeds]
        block.average_differences[label] = gap_of(both, metric)


def _relative_error(pairs: Mapping[str, Mapping[int, tuple[Value, Value]]]) -> Interval | None:
    kinds: dict[str, list[str]] = {}
    for domain in pairs:
        if match := re.fullmatch(r"(.+)/[1-5]", domain):
            kinds.setdefault(match[1], []).append(domain)
    per_seed = []
    for seed in _complete(pairs, [domain for group in kinds.values() for domain in group]):
        ratios = []
        for group in kinds.values():
            mine, theirs = (math.fsum(100 - pairs[domain][seed][which].number for domain in group) for which in (0, 1))
            if theirs == 0:
                return None
            ratios.append(mine / theirs)
        per_seed.append(100 * fmean(ratios))
    return Interval(fmean(per_seed), math.nan, len(per_seed)) if per_seed else None


def _complete(values: Mapping[str, Mapping[int, Any]], domains: Sequence[str]) -> list[int]:
    if not domains:
        return []
    return sorted(set.intersection(*(set(values[domain]) for domain in domains)))


def _domain_order(domain: str) -> tuple[Any, ...]:
    known = [CLEAN, *CORRUPTIONS, *EXTRA_CORRUPTIONS]
    kind = domain.split("/")[0]
    return (known.index(kind) if kind in known else len(known), natural(domain))


STEPS = 20
"""Number of steps in which a run is shown, at most; each has one batch or several."""


class Step(NamedTuple):
    """Some batches in a row: the first and the last, counted from 1, and the accuracy in percent."""

    first: int
    last: int
    accuracy: Interval


def over_time(block: Block, steps: int = STEPS) -> dict[str, list[Step]]:
    """The accuracy of each method over the batches of its runs: all shifted domains and seeds together.

    Methods whose records do not say which samples were right are left out.
    """
    by_method = {label: runs for label in block.methods if (runs := _runs(block, label))}
    batches = max((int(run.answers.batch.max()) + 1 for runs in by_method.values() for run in runs), default=0)
    width = max(1, -(-batches // steps))
    starts = range(0, batches, width)
    return {
        label: [step for start in starts if (step := _step(runs, start, min(start + width, batches)))]
        for label, runs in by_method.items()
    }


class _Run(NamedTuple):
    seed: int
    domain: int
    answers: Answers


def _runs(block: Block, label: str) -> list[_Run]:
    cells = [block.cells[domain, label] for domain in block.averaged or block.domains if (domain, label) in block.cells]
    values = [(seed, place, value.answers) for place, cell in enumerate(cells) for seed, value in cell.values.items()]
    runs = [_Run(seed, place, answers) for seed, place, answers in values if answers is not None]
    return runs if len(runs) == len(values) else []


def _step(runs: list[_Run], start: int, stop: int) -> Step | None:
    right, units, domains = [], [], []
    for _, domain, answers in runs:
        here = (answers.batch >= start) & (answers.batch < stop)
        right.append(answers.right[here])
        units.append(answers.unit[here])
        domains.append(domain)
    if not sum(map(len, right)):
        return None
    mean, low, high = (100 * value for value in accuracy(right, units, domains=domains))
    seeds = len({run.seed for run in runs})
    return Step(start + 1, stop, Interval.between(mean, low, high, seeds).within(100))

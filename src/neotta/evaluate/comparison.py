"""What a comparison of methods consists of, and what has to be said along with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from neotta.evaluate.domains import CLEAN
from neotta.evaluate.labels import Conditions
from neotta.evaluate.metrics import Interval, interval


class Metric(NamedTuple):
    """A number in the records, and how to read it.

    Attributes:
        name: Its name in a record.
        title: What to call it.
        better: Which direction is good; None where neither is (a confident model may be wrong).
        digits: How many decimals to show.
    """

    name: str
    title: str
    better: Literal["higher", "lower"] | None
    digits: int


METRICS = {
    metric.name: metric
    for metric in (
        Metric("top1", "top-1 accuracy in %", "higher", 1),
        Metric("top5", "top-5 accuracy in %", "higher", 1),
        Metric("ece", "expected calibration error", "lower", 3),
        Metric("nll", "negative log-likelihood in nats", "lower", 3),
        Metric("entropy", "entropy in nats", None, 3),
        Metric("confidence", "confidence", None, 3),
    )
}
MCE = Metric("mce", "mean corruption error in %", "lower", 1)


class Difference(NamedTuple):
    """A method minus the baseline on the same samples.

    Attributes:
        interval: Mean difference over seeds and its 95 % interval.
        verdict: `helps`, `hurts` or `can't tell`; for a metric without a good direction `higher` or `lower`.
    """

    interval: Interval
    verdict: str


class Failure(NamedTuple):
    """A run that failed."""

    method: str
    domain: str
    seed: int
    error: str


class Value(NamedTuple):
    """What one run measured, and on which samples."""

    number: float
    samples: tuple[Any, ...]


@dataclass
class Cell:
    """All runs of one method on one domain, by seed."""

    values: dict[int, Value] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)

    @property
    def interval(self) -> Interval:
        """Mean and 95 % interval over seeds."""
        return interval([value.number for value in self.values.values()])


@dataclass
class Block:
    """Runs under the same conditions: one table.

    Attributes:
        conditions: What they share.
        title: The conditions that set this block apart from the others; empty if there is only one.
        methods: The labels of the methods.
        baseline: The label that differences refer to, or None if it was not run here.
        domains: In the order of the paper.
        cells: By domain and label; a pair that was never run is missing.
        averaged: The domains behind the average: all but the clean one.
        average: By label: the unweighted mean over domains per seed, then the interval over seeds. Only for methods
            that have all these domains.
        differences: By domain and label, to the baseline's run on the same samples.
        average_differences: By label: mean over domains per seed, then the interval over seeds.
        mce: By label: for each corruption the errors summed over severities, divided by the baseline's, then the mean
            over corruptions, per seed and in percent (Hendrycks & Dietterich, 2019, with this baseline in the place of
            AlexNet); then the interval over seeds. Only from top-1, for domains named `corruption/severity`, and not
            where the baseline makes no error.
        failures: Runs that failed and were not made up for later.
        replaced: How many values gave way to a later one of the same seed on other samples.
    """

    conditions: Conditions
    title: str
    methods: tuple[str, ...]
    baseline: str | None
    domains: tuple[str, ...]
    cells: dict[tuple[str, str], Cell]
    averaged: tuple[str, ...] = ()
    average: dict[str, Interval] = field(default_factory=dict)
    differences: dict[tuple[str, str], Difference] = field(default_factory=dict)
    average_differences: dict[str, Difference] = field(default_factory=dict)
    mce: dict[str, Interval] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()
    replaced: int = 0

    @property
    def seeds(self) -> list[int]:
        """The seeds of the runs that succeeded."""
        return sorted({seed for cell in self.cells.values() for seed in cell.values})


@dataclass
class Comparison:
    """Methods side by side.

    Attributes:
        metric: What is compared.
        blocks: One table each.
        shared: The conditions that all blocks share, in words.
    """

    metric: Metric
    blocks: tuple[Block, ...]
    shared: str

    def notes(self) -> list[str]:
        """What a reader has to know besides the numbers."""
        found = [*self._about_seeds(), *self._about_gaps()]
        if any(block.mce for block in self.blocks):
            found.append(
                "mCE: errors of each corruption summed over severities, relative to the baseline's, averaged over "
                "corruptions; below 100 is better than the baseline."
            )
        if any(CLEAN in block.domains and block.average for block in self.blocks):
            found.append("The average leaves the clean domain out.")
        return found

    def _about_seeds(self) -> Iterator[str]:
        counts = [cell.interval.runs for block in self.blocks for cell in block.cells.values() if cell.values]
        if not counts:
            return
        few, many = min(counts), max(counts)
        if many == 1:
            yield "One seed: no interval, so nothing can be told from chance."
            return
        yield (
            f"{few if few == many else f'{few} to {many}'} seeds: ± is the half-width of the 95 % interval of the mean "
            "over seeds (Student's t)."
        )
        if few == 1:
            yield "Values without ± have one seed."
        verdicts = sum(len(block.differences) for block in self.blocks)
        if verdicts >= 20:
            yield (
                f"Each of the {verdicts} verdicts stands alone at 95 %: where nothing differs, about one in twenty "
                "says helps or hurts by chance."
            )

    def _about_gaps(self) -> Iterator[str]:
        failed = sum(len(block.failures) for block in self.blocks)
        if failed:
            yield f"{failed} {'run' if failed == 1 else 'runs'} failed: their values are missing."
        if any(block.baseline is None for block in self.blocks):
            yield "Differences need runs of the baseline under the same conditions: some are missing."
        unpaired = sum(
            len(cell.values) - (paired.interval.runs if (paired := block.differences.get(place)) else 0)
            for block in self.blocks
            if block.baseline is not None
            for place, cell in block.cells.items()
            if place[1] != block.baseline
        )
        if unpaired:
            yield f"{unpaired} runs are left out of the differences: the baseline was not run on the same samples."
        partial = sum(
            label not in block.average for block in self.blocks if len(block.averaged) > 1 for label in block.methods
        )
        if partial:
            yield "An average is given only for methods that have a value for every domain."
        replaced = sum(block.replaced for block in self.blocks)
        if replaced:
            yield f"{replaced} values were measured again on other samples: the last ones are shown."

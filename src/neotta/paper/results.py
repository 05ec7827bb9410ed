"""Measured results as items read them: means, differences and curves. All statistics of items are taken here."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from neotta.errors import DataError, OptionError
from neotta.evaluate.comparison import Block, Comparison, Difference, compare
from neotta.evaluate.domains import CLEAN
from neotta.evaluate.metrics import NOTHING, Interval
from neotta.evaluate.records import Record
from neotta.evaluate.verdicts import Metric, Value, gap_of, mean_of
from neotta.paper.claims import Holds, listed, place_among, some
from neotta.paper.study import in_paper_order
from neotta.paper.tables import Point, gains_along, gap_rows, value_rows
from neotta.report import grids
from neotta.report.grids import Table

T = TypeVar("T")
Gaps = dict[str, Difference]
"""By method: its difference to another method, on the same samples."""
PerSeed = dict[int, list[Value]]
"""By seed: values of a method in several domains."""


@dataclass(frozen=True)
class Results:
    """A comparison of methods, and the block of it, with runs under the same conditions, that is looked at."""

    comparison: Comparison
    block: Block

    @classmethod
    def of(cls, records: Sequence[Record], metric: str = "top1", baseline: str = "none") -> Results | None:
        """Look at the block with the most methods; None if no run succeeded or the baseline is missing."""
        try:
            comparison = compare(records, metric, baseline=baseline) if records else None
        except (DataError, OptionError):
            return None
        if comparison is None:
            return None
        blocks = tuple(replace(block, methods=tuple(in_paper_order(block.methods))) for block in comparison.blocks)
        return cls(replace(comparison, blocks=blocks), max(blocks, key=lambda block: len(block.methods)))

    def each(self) -> Iterator[Results]:
        return (replace(self, block=block) for block in self.comparison.blocks)

    def only(self, condition: str, value: Any) -> Results:
        """Only the blocks in which a condition, such as the samples of a run, has this value."""
        blocks = tuple(block for block in self.comparison.blocks if getattr(block.conditions, condition) == value)
        return Results(replace(self.comparison, blocks=blocks), blocks[0])

    def surest(self, method: str) -> Results:
        """The block that compares a method with the baseline over the most seeds; this one if there is none."""
        having = [each for each in self.each() if method in each.gaps]
        return max(having, key=lambda each: each.gaps[method].interval.runs, default=self)

    # ---- numbers

    @property
    def means(self) -> dict[str, Interval]:
        """The mean of each method over the shifted domains; with a single domain, that of the domain."""
        return self._in_order(self.block.average or self.in_domain(self._alone)[0])

    @property
    def gaps(self) -> Gaps:
        """The differences to the baseline over the shifted domains; with a single domain, those on it."""
        return self._in_order(self.block.average_differences or self.in_domain(self._alone)[1])

    @property
    def gains(self) -> dict[str, Interval]:
        return {label: gap.interval for label, gap in self.gaps.items()}

    def in_domain(self, domain: str) -> tuple[dict[str, Interval], Gaps]:
        """Means and differences to the baseline in one domain, by method."""
        cells, gaps = self.block.cells, self.block.differences
        means = {label: cell.interval for (where, label), cell in cells.items() if where == domain and cell.values}
        return means, {label: gap for (where, label), gap in gaps.items() if where == domain}

    @property
    def by_corruption(self) -> dict[str, dict[str, Interval]]:
        """Means by corruption (or other shifted domain), without its severity, and their average, then by method."""
        means = {where.partition("/")[0]: self.in_domain(where)[0] for where in self.block.domains if where != CLEAN}
        return {**means, "average" if len(means) > 1 else "all": self.means}

    def value(self, label: str | None, domain: str, seed: int) -> Value | None:
        cell = self.block.cells.get((domain, label or ""))
        return None if cell is None else cell.values.get(seed)

    def per_seed(self, label: str) -> PerSeed:
        """The values of a method in the shifted domains, for each seed that has them all."""
        domains = self.block.averaged or self.block.domains
        by_seed = {seed: [self.value(label, domain, seed) for domain in domains] for seed in self.block.seeds}
        full = {seed: [value for value in values if value is not None] for seed, values in by_seed.items()}
        return {seed: got for seed, got in full.items() if len(got) == len(domains)}

    def seeds_of(self, label: str) -> set[int]:
        return {seed for (_, name), cell in self.block.cells.items() if name == label for seed in cell.values}

    def curves(
        self,
        place: Callable[[Any], float] = lambda run: run.samples,
        *,
        domain: str | None = None,
        names: Mapping[str, str] | None = None,
    ) -> dict[str, list[Point]]:
        """The points of each method along the samples, or what `place` reads from the conditions of a block.

        They are of the given domain, or means over the shifted ones. `names` are other names for labels of methods;
        without a gain of each of these methods there are no curves.
        """
        by_label: dict[str, list[Point]] = {}
        for each in self.each():
            means, gaps = (each.means, each.gaps) if domain is None else each.in_domain(domain)
            for label, mean in means.items():
                gain = gaps[label].interval if label in gaps else NOTHING
                point = Point(place(each.block.conditions), mean, gain)
                by_label.setdefault((names or {}).get(label, label), []).append(point)
        complete = all(gains_along(by_label.get(name, [])) for name in (names or {}).values())
        return {label: sorted(points) for label, points in by_label.items()} if complete else {}

    def over_index(self, orders: Mapping[int, Sequence[str]]) -> dict[str, list[Point]]:
        """The points of each method over the first, second, ... domain in the order of each seed.

        They are averaged over the seeds that all methods have, because others meet the domains in another order.
        """
        block, curves = self.block, dict[str, list[Point]]()
        having = [seeds for label in block.methods if (seeds := self.seeds_of(label))]
        shared = [seed for seed in block.seeds if all(seed in seeds for seeds in having)] or block.seeds
        for label, index in itertools.product(block.methods, range(len(block.domains))):
            places = [(orders[seed][index], seed) for seed in shared]
            mine = {place: value for place in places if (value := self.value(label, *place)) is not None}
            base = {place: self.value(block.baseline, *place) for place in mine if label != block.baseline}
            pairs = [[(mine[place], value)] for place, value in base.items() if value is not None]
            if mine:
                mean = mean_of([[value] for value in mine.values()], self.comparison.metric)
                gain = gap_of(pairs, self.comparison.metric).interval if pairs else NOTHING
                curves.setdefault(label, []).append(Point(index + 1, mean, gain))
        return curves

    def _in_order(self, by_label: Mapping[str, T]) -> dict[str, T]:
        return {label: by_label[label] for label in self.block.methods if label in by_label}

    @property
    def _alone(self) -> str:
        names = self.block.averaged or self.block.domains
        return names[0] if len(names) == 1 else ""

    # ---- tables and words

    def tables(self, title: str, *, gaps: bool = True) -> list[Table]:
        """The tables of all blocks: means, and differences to the unadapted model if there are any."""
        tables, metric = [], self.comparison.metric
        for each in self.each():
            block = each.block
            where = f"{title}, {block.title}" if block.title else title
            caption = f"{metric.title[:1].upper()}{metric.title[1:]}. Best in bold, second best underlined.{each.seeds}"
            tables.append(Table(where, grids.values(block, metric), value_rows(block), caption))
            differing = grids.differences(block, metric) if gaps else None
            if differing is not None:
                where = f"{where}: difference to {block.baseline}"
                caption = f"Difference to {block.baseline} on the same samples, with the verdict.{each.seeds}"
                tables.append(Table(where, differing, gap_rows(block), caption))
        return tables

    def extent(self, *labels: str) -> str:
        """What methods, by default all, were run on: `512 samples, 1 to 3 seeds`."""
        count = self.block.conditions.samples
        seeds = [len(seeds) for label in labels or self.block.methods if (seeds := self.seeds_of(label))] or [0]
        fewest = f"{min(seeds)} to " if min(seeds) < max(seeds) else ""
        return f"{'all samples' if count < 0 else some(count, 'sample')}, {fewest}{some(max(seeds), 'seed')}"

    @property
    def seeds(self) -> str:
        """A sentence on the seeds, and on what the intervals are about if there are any."""
        count = len(self.block.seeds)
        if all(math.isnan(cell.interval.half_width) for cell in self.block.cells.values()):
            return (
                f" Mean over {count} seeds, without intervals.{self.uneven}"
                if count > 1
                else " One seed, no intervals."
            )
        if count < 2:
            return " 95 % intervals over images; one seed, so the randomness of the methods is not in them."
        return f" 95 % intervals over images and {count} seeds.{self.uneven}"

    @property
    def uneven(self) -> str:
        """A sentence on methods with fewer seeds than others, whose means are of other samples; empty without any."""
        few = [label for label in self.block.methods if 0 < len(self.seeds_of(label)) < len(self.block.seeds)]
        fewer = "their means are of fewer samples, so compare them by their differences to none"
        why = fewer if self.block.conditions.samples >= 0 else "all see all images"
        return f" With fewer seeds: {listed(few)}; {why}." if few else ""

    def notes(self, verdicts: bool = True) -> list[str]:
        """What has to be said along with the tables; without verdicts if differences are not shown."""
        return [note for note in self.comparison.notes() if verdicts or "verdict" not in note.lower()]

    @property
    def failures(self) -> list[str]:
        return list(dict.fromkeys(line for block in self.comparison.blocks for line in grids.failures(block)))


def between(mine: PerSeed, theirs: PerSeed, metric: Metric) -> Interval:
    """The difference of two results, paired by seed and image."""
    pairs = [list(zip(mine[seed], theirs[seed], strict=True)) for seed in mine if seed in theirs]
    return gap_of(pairs, metric).interval if pairs else NOTHING


def with_verdict(gaps: Gaps, said: str) -> list[str]:
    """The methods whose difference has this verdict: `helps`, `hurts` or `can't tell`."""
    return [label for label, gap in gaps.items() if gap.verdict == said]


def ahead(gaps: Gaps) -> Holds:
    """Whether a method is the best, by how the others differ from it: unclear while a difference may be chance."""
    if with_verdict(gaps, "helps"):
        return "no"
    return "yes" if gaps and len(with_verdict(gaps, "hurts")) == len(gaps) else "unclear"


def rank(gaps: Gaps) -> str:
    """`the best of 9 methods`: where a method stands by how the others differ from it, and what may be chance."""
    means = {label: round(gap.interval.mean, 1) for label, gap in gaps.items()}
    ahead = sorted((label for label in means if means[label] > 0), key=lambda label: -means[label])
    tied = [label for label in means if means[label] == 0]
    unsure = with_verdict(gaps, "can't tell")
    place = place_among(ahead, tied, "first" if unsure or tied else "the best")
    doubtful = [label for label in unsure if label not in tied]
    chance = f" (its difference to {listed(doubtful)} may be chance)" if doubtful else ""
    if len(doubtful) == len(gaps) > 1:
        chance = " (all its differences may be chance)"
    return f"{place} of {len(gaps) + 1} methods{chance}"

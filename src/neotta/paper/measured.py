"""What was measured as items read it: means, differences and curves, from the frame of runs and its comparison."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from neotta.errors import DataError, OptionError
from neotta.evaluate.compare import AVERAGE, cells_of, compare, difference_in, failures, mean_in, notes
from neotta.evaluate.domains import CLEAN
from neotta.evaluate.estimates import METRICS, Metric, difference_of, mean_of
from neotta.evaluate.frame import frame
from neotta.evaluate.metrics import CANNOT_TELL, NOTHING, Interval, verdict
from neotta.evaluate.records import Record
from neotta.paper.claims import Holds, called, listed, place_among, some
from neotta.paper.study import in_paper_order
from neotta.paper.tables import Point, gains_along
from neotta.report import grids
from neotta.report.formats import plain_rows
from neotta.report.grids import Table

if TYPE_CHECKING:
    import pandas

Gaps = dict[str, Interval]
"""By method: its difference to another method, on the same samples."""
VALUES = ["domain", "method", "mean", "half_width", "low", "high", "seeds", "failed"]
GAPS = {"difference": "mean", "difference_low": "low", "difference_high": "high", "pairs": "seeds"}
"""The columns of a comparison that tables have as numbers, and what they call them."""
PerSeed = dict[int, list[Any]]
"""By seed: rows of a method in several domains."""


@dataclass(frozen=True)
class Measured:
    """The frame of runs, the comparison of them, and which of its tables, under the same conditions, is looked at."""

    runs: pandas.DataFrame
    tables: pandas.DataFrame
    number: int

    @classmethod
    def of(cls, records: Sequence[Record], metric: str = "top1", baseline: str = "none") -> Measured | None:
        """Look at the table with the most methods; None if no run succeeded or the baseline is missing."""
        try:
            runs = frame(records)
            tables = compare(runs, metric, baseline=baseline)
        except (DataError, OptionError):
            return None
        tables["method"] = tables["method"].cat.reorder_categories(in_paper_order(tables["method"].cat.categories))
        return cls(runs, tables, int(tables.groupby("table")["method"].nunique().idxmax()))

    def each(self) -> Iterator[Measured]:
        return (replace(self, number=number) for number in sorted(set(self.tables["table"])))

    def only(self, condition: str, value: Any) -> Measured:
        """Only the tables in which a condition, such as the samples of a run, has this value."""
        tables = self.tables[self.tables[condition] == value]
        return replace(self, tables=tables, number=tables["table"].iloc[0])

    def surest(self, method: str) -> Measured:
        """The table that compares a method with the baseline over the most seeds; this one if there is none."""
        having = [each for each in self.each() if method in each.gaps]
        return max(having, key=lambda each: each.gaps[method].runs, default=self)

    # ---- numbers

    @cached_property
    def table(self) -> pandas.DataFrame:
        return self.tables[self.tables["table"] == self.number]

    @property
    def conditions(self) -> Any:
        """A row of the table, whose conditions are those of all."""
        return next(self.table.itertuples())

    @property
    def metric(self) -> Metric:
        return METRICS[self.tables["metric"].iloc[0]]

    @cached_property
    def methods(self) -> list[str]:
        ran = set(self.table["method"])
        return [label for label in self.table["method"].cat.categories if label in ran]

    @cached_property
    def domains(self) -> list[str]:
        return [name for name in dict.fromkeys(self.table["domain"]) if name != AVERAGE]

    @property
    def averaged(self) -> list[str]:
        return [name for name in self.domains if name != CLEAN]

    @property
    def means(self) -> dict[str, Interval]:
        """The mean of each method over the shifted domains; with a single domain, that of the domain."""
        return self.in_domain(self._together)[0]

    @property
    def gaps(self) -> Gaps:
        """The differences to the baseline over the shifted domains; with a single domain, those on it."""
        return self.in_domain(self._together)[1]

    def in_domain(self, domain: str) -> tuple[dict[str, Interval], Gaps]:
        """Means and differences to the baseline in one domain, by method."""
        rows = [row for row in self.table.itertuples() if row.domain == domain]
        rows.sort(key=lambda row: self.methods.index(row.method))
        means = {row.method: mean_in(row) for row in rows if row.seeds}
        return means, {row.method: difference_in(row) for row in rows if row.pairs}

    @property
    def by_corruption(self) -> dict[str, dict[str, Interval]]:
        """Means by corruption (or other shifted domain), without its severity, and their average, then by method."""
        means = {where.partition("/")[0]: self.in_domain(where)[0] for where in self.averaged}
        return {**means, "average" if len(means) > 1 else "all": self.means}

    @cached_property
    def cells(self) -> dict[tuple[str, str], dict[int, Any]]:
        """Rows of the frame by domain and method, then by seed."""
        return cells_of(self.runs[self.runs["table"] == self.number], self.metric)

    def per_seed(self, label: str) -> PerSeed:
        """The rows of a method in the shifted domains, for each seed that has them all."""
        cells = [self.cells.get((domain, label), {}) for domain in self.averaged or self.domains]
        return {seed: [cell[seed] for cell in cells] for seed in self.seeds if all(seed in cell for cell in cells)}

    def seeds_of(self, label: str) -> set[int]:
        return {seed for (_, name), cell in self.cells.items() if name == label for seed in cell}

    @cached_property
    def seeds(self) -> list[int]:
        """The seeds of the runs that succeeded."""
        return sorted({seed for cell in self.cells.values() for seed in cell})

    def curves(
        self,
        place: Callable[[Any], float] = lambda run: float(run.samples),
        *,
        domain: str | None = None,
        names: Mapping[str, str] | None = None,
    ) -> dict[str, list[Point]]:
        """The points of each method along the samples, or what `place` reads from the conditions of a table.

        They are of the given domain, or means over the shifted ones. `names` are other names for labels of methods;
        without a gain of each of these methods there are no curves.
        """
        by_label: dict[str, list[Point]] = {}
        for each in self.each():
            means, gaps = (each.means, each.gaps) if domain is None else each.in_domain(domain)
            for label, mean in means.items():
                point = Point(place(each.conditions), mean, gaps.get(label, NOTHING))
                by_label.setdefault((names or {}).get(label, label), []).append(point)
        complete = all(gains_along(by_label.get(name, [])) for name in (names or {}).values())
        return {label: sorted(points) for label, points in by_label.items()} if complete else {}

    def over_index(self, orders: Mapping[int, Sequence[str]]) -> dict[str, list[Point]]:
        """The points of each method over the first, second, ... domain in the order of each seed.

        They are averaged over the seeds that all methods have, because others meet the domains in another order.
        """
        cells, base, curves = self.cells, self.table["baseline"].iloc[0], dict[str, list[Point]]()
        having = [seeds for label in self.methods if (seeds := self.seeds_of(label))]
        shared = [seed for seed in self.seeds if all(seed in seeds for seeds in having)] or self.seeds
        for label, index in itertools.product(self.methods, range(len(self.domains))):
            places = [(orders[seed][index], seed) for seed in shared]
            mine, plain = (
                {
                    (domain, seed): cells[domain, name][seed]
                    for domain, seed in places
                    if seed in cells.get((domain, name), {})
                }
                for name in (label, base)
            )
            pairs = [[(row, plain[place])] for place, row in mine.items() if place in plain and label != base]
            if mine:
                mean = mean_of([[row] for row in mine.values()], self.metric)
                gain = difference_of(pairs, self.metric).interval if pairs else NOTHING
                curves.setdefault(label, []).append(Point(index + 1, mean, gain))
        return curves

    @property
    def _together(self) -> str:
        names = self.averaged or self.domains
        return names[0] if len(names) == 1 else AVERAGE

    # ---- tables and words

    def shown(self, title: str, *, gaps: bool = True) -> list[Table]:
        """All tables: means, and differences to the unadapted model if there are any."""
        tables, metric = [], self.metric
        for each in self.each():
            block, about = each.table, each.conditions
            where = f"{title}, {about.title}" if about.title else title
            caption = f"{metric.title[:1].upper()}{metric.title[1:]}. Best in bold, second best underlined.{each.basis}"
            tables.append(Table(where, grids.values(block), plain_rows(block[VALUES]), caption))
            differing = grids.differences(block) if gaps else None
            if differing is not None:
                where, paired = f"{where}: difference to {called(about.baseline)}", block[block["pairs"] > 0]
                caption = f"Differences on the same samples, with their verdicts.{each.basis}"
                numbers = paired[["domain", "method", *GAPS, "verdict"]].rename(columns=GAPS)
                tables.append(Table(where, differing, plain_rows(numbers), caption))
        return tables

    def extent(self, *labels: str) -> str:
        """What methods, by default all, were run on: `512 samples, 1 to 3 seeds`."""
        count = self.conditions.samples
        seeds = [len(seeds) for label in labels or self.methods if (seeds := self.seeds_of(label))] or [0]
        fewest = f"{min(seeds)} to " if min(seeds) < max(seeds) else ""
        return f"{'all samples' if count < 0 else some(count, 'sample')}, {fewest}{some(max(seeds), 'seed')}"

    @property
    def basis(self) -> str:
        """A sentence on the seeds, and on what the intervals are about if there are any."""
        count = len(self.seeds)
        if self.table["half_width"].isna().all():
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
        few = [label for label in self.methods if 0 < len(self.seeds_of(label)) < len(self.seeds)]
        fewer = "their means are of fewer samples, so compare them by their differences to none"
        why = fewer if self.conditions.samples >= 0 else "all see all images"
        return f" With fewer seeds: {listed(few)}; {why}." if few else ""

    def notes(self, verdicts: bool = True) -> list[str]:
        """What has to be said along with the tables; without verdicts if differences are not shown."""
        return [note for note in notes(self.tables) if verdicts or "verdict" not in note.lower()]

    @property
    def failures(self) -> list[str]:
        return list(dict.fromkeys(line for each in self.each() for line in failures(each.table)))


def between(mine: PerSeed, theirs: PerSeed, metric: Metric) -> Interval:
    """The difference of two results, paired by seed and image."""
    pairs = [list(zip(mine[seed], theirs[seed], strict=True)) for seed in mine if seed in theirs]
    return difference_of(pairs, metric).interval if pairs else NOTHING


def with_verdict(gaps: Gaps, said: str) -> list[str]:
    """The methods whose difference has this verdict: `helps`, `hurts` or `can't tell`."""
    return [label for label, gap in gaps.items() if verdict(gap) == said]


def ahead(gaps: Gaps) -> Holds:
    """Whether a method is the best, by how the others differ from it: unclear while a difference may be chance."""
    if with_verdict(gaps, "helps"):
        return "no"
    return "yes" if gaps and len(with_verdict(gaps, "hurts")) == len(gaps) else "unclear"


def rank(gaps: Gaps) -> str:
    """`the best of 9 methods`: where a method stands by how the others differ from it, and what may be chance."""
    means = {label: round(gap.mean, 1) for label, gap in gaps.items()}
    ahead = sorted((label for label in means if means[label] > 0), key=lambda label: -means[label])
    tied = [label for label in means if means[label] == 0]
    unsure = with_verdict(gaps, CANNOT_TELL)
    place = place_among(ahead, tied, "first" if unsure or tied else "the best")
    doubtful = [label for label in unsure if label not in tied]
    chance = f" (its difference to {listed(doubtful)} may be chance)" if doubtful else ""
    if len(doubtful) == len(gaps) > 1:
        chance = " (all its differences may be chance)"
    return f"{place} of {len(gaps) + 1} methods{chance}"

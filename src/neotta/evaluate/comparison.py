"""From records to a comparison: means over seeds, differences on the same samples, and verdicts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from neotta.errors import DataError, OptionError
from neotta.evaluate.blocks import Block, Cell, make_block
from neotta.evaluate.domains import CLEAN
from neotta.evaluate.labels import Conditions, Variant, differing, labels
from neotta.evaluate.records import UNKNOWN, Record
from neotta.evaluate.verdicts import METRICS, RELATIVE_ERROR, Difference, Metric, Value

__all__ = ["METRICS", "Block", "Cell", "Comparison", "Difference", "Value", "compare"]


@dataclass
class Comparison:
    metric: Metric
    blocks: tuple[Block, ...]
    shared: str  # the conditions that all blocks share, in words
    remarks: tuple[str, ...] = ()

    def notes(self) -> list[str]:
        lines = [*self.remarks, *self._about_seeds(), *self._about_gaps()]
        if any(block.relative_error for block in self.blocks):
            lines.append(
                f"{RELATIVE_ERROR.name}: errors of each corruption summed over severities, in % of the baseline's, "
                "averaged over corruptions, without an interval; below 100 is better than the baseline. The mean "
                "corruption error (mCE) of the literature is relative to AlexNet's, and does not compare with it."
            )
        if any(CLEAN in block.domains and block.average for block in self.blocks):
            lines.append("The average leaves the clean domain out.")
        return lines

    def _about_seeds(self) -> Iterator[str]:
        means = [cell.interval for block in self.blocks for cell in block.cells.values()]
        counts = [mean.runs for mean in means if not math.isnan(mean.half_width)]
        few, many = min(counts, default=0), max(counts, default=0)
        if counts:
            seeds = f" ({few} of them)" if few == many else f" ({few} to {many} of them)"
            yield f"± and [low, high]: 95 % interval over images{'' if many == 1 else f' and seeds{seeds}'}."
        if any(gap.interval.runs == 1 and held_out for gap, held_out in self._gaps()):
            yield (
                "No interval and no verdict where one state, of one seed, was scored on images that it did not adapt "
                "to: another seed has another state, and how much that changes is not known. Use several seeds."
            )
        if few == 1:
            yield (
                f"{'One seed' if many == 1 else 'Where there is one seed'}: the interval is about other images; how "
                "much a method depends on its own randomness and on the order of the samples is not in it."
            )
        if few == 2:
            yield (
                "Two seeds show in one domain hardly anything of how much runs vary: intervals there are several times "
                "wider than with three, and verdicts rare. Over many domains they are fine."
            )
        yield from self._about_verdicts()

    def _about_verdicts(self) -> Iterator[str]:
        if any(len(block.domains) > 1 and block.differences for block in self.blocks):
            yield (
                "Verdicts on single domains and the intervals of these differences are corrected for the number of "
                "domains of a method (Holm)."
            )
        values = [value for block in self.blocks for cell in block.cells.values() for value in cell.values.values()]
        if old := sum(value.answers is None for value in values):
            yield (
                f"{old} values come from records that do not say which samples were right, as those of older versions: "
                "they have no interval and no verdict until they are measured again, to another file."
            )
        elif self.metric.name != "top1" and any(
            math.isnan(gap.pvalue) and not held_out for gap, held_out in self._gaps()
        ):
            yield "No verdict where there is one seed or all seeds see the same images: only accuracy has one then."

    def _gaps(self) -> Iterator[tuple[Difference, bool]]:
        for block in self.blocks:
            for gap in block.differences.values():
                yield gap, block.conditions.held_out_samples is not None

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
        seen = [{block.samples(label) for label in block.methods} - {frozenset()} for block in self.blocks]
        if any(len(different) > 1 for different in seen):
            yield (
                "Some methods were run on fewer seeds or other samples. Best and second best are those of the printed "
                "means; only the differences compare the same samples."
            )
        partial = sum(
            label not in block.average for block in self.blocks if len(block.averaged) > 1 for label in block.methods
        )
        if partial:
            yield "An average is given only for methods that have a value for every domain."
        replaced = sum(block.replaced for block in self.blocks)
        if replaced:
            yield f"{replaced} values were measured again on other samples: the last ones are shown."


def compare(records: Iterable[Record], metric: str = "top1", *, baseline: str = "none") -> Comparison:
    if metric not in METRICS:
        raise OptionError(f"metric is {metric!r}: choose one of {', '.join(METRICS)}")
    runs = [record for record in records if record.failed or record.measured]
    if not runs:
        raise DataError("there is no record of a run: make some with 'neotta run'")
    names = labels(runs)
    base = _baseline(names, baseline)
    weights = _weights(runs)
    grouped: dict[Conditions, list[Record]] = {}
    for run in runs:
        grouped.setdefault(Conditions.of(run, weights.get(run.model, UNKNOWN)), []).append(run)
    order = sorted(grouped, key=Conditions.place)
    varied = differing(order)
    blocks = tuple(make_block(key, key.words(varied), grouped[key], names, METRICS[metric], base) for key in order)
    measured = any(cell.values for block in blocks for cell in block.cells.values())
    if not measured and any(not run.failed for run in runs):
        raise DataError(f"no run has {metric!r}, which may need labels: try the metric 'entropy' or 'confidence'")
    unvaried = [name for name in Conditions._fields if name not in (*varied, "weights", "evaluate", "sequence")]
    return Comparison(METRICS[metric], blocks, order[0].words(unvaried))


def _weights(runs: Sequence[Record]) -> dict[str, str]:  # a run that failed early does not know its own
    weightings: dict[str, set[str]] = {}
    for run in runs:
        if run.weights:
            weightings.setdefault(run.model, set()).add(run.weights)
    return {model: known.pop() for model, known in weightings.items() if len(known) == 1}


def _baseline(names: Mapping[Variant, str], baseline: str) -> str | None:
    if baseline in names.values():
        return baseline
    labels = [label for variant, label in names.items() if variant.method == baseline]
    if len(labels) == 1:
        return labels[0]
    if labels:
        raise OptionError(f"there are several runs of {baseline!r}: choose the baseline among {_list(labels)}")
    if baseline == "none":
        return None
    raise OptionError(f"the baseline {baseline!r} was not run: there are {_list(names.values())}")


def _list(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)

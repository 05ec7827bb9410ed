"""Whether the size of batches matters to NEO."""

from __future__ import annotations

from collections.abc import Mapping

from neotta.evaluate.metrics import Interval, interval, verdict
from neotta.evaluate.plan import Plan
from neotta.paper import comparing, curves
from neotta.paper.evidence import Evidence
from neotta.paper.item import Finding, Holds, Item, Table
from neotta.paper.study import Setting

PUBLISHED = {1: 56.91, 4: 57.04, 8: 56.99, 16: 57.02, 32: 56.97, 64: 56.98}
"""Accuracy in percent by batch size: ViT-Base on ImageNet-C, 512 samples, scored on the rest."""
SPREAD = max(PUBLISHED.values()) - min(PUBLISHED.values())
"""What the paper calls no significant difference, in points."""


class BatchSize(Item):
    """Table 4a."""

    name = "table-batch-size"
    title = "NEO with batches of any size"
    place = "Table 4a"
    question = "Does the size of the batches matter to NEO?"
    claim = "It does not: after the same samples, accuracy differs by no more than 0.13 points between sizes 1 and 64."

    def plans(self, setting: Setting) -> list[Plan]:
        """The same samples in batches of different sizes, scored on the rest."""
        samples = setting.held_out_samples
        sizes = [size for size in PUBLISHED if size <= samples]
        return [setting.plan("neo", protocol="hold-out", samples=[samples], batch_sizes=sizes)] if sizes else []

    def find(self, evidence: Evidence) -> Finding:
        """Compare every size with the largest, on the same samples."""
        finding = Finding()
        for setting in evidence.settings:
            comparison = comparing.compared(evidence.records(*self.plans(setting)))
            if comparison is None:
                continue
            reached = {block.conditions.batch_size: curves.per_seed(block, "neo") for block in comparison.blocks}
            reached = {size: values for size, values in sorted(reached.items()) if values}
            finding.notes += curves.failures(comparison)
            if len(reached) < 2:
                continue
            gaps = {size: curves.between(values, reached[max(reached)]) for size, values in reached.items()}
            finding.parts += _tables(setting, reached, gaps, comparing.seeds(comparison.blocks[0]))
            finding.say(_answer(setting, gaps), _holds(gaps))
        return finding


def _tables(
    setting: Setting, reached: Mapping[int, Mapping[int, float]], gaps: Mapping[int, Interval], seeds: str
) -> list[Table]:
    """Accuracies, and their differences to the largest size, beside the published ones."""
    largest = max(reached)
    how = f"on the rest after {setting.held_out_samples} samples, mean over {len(setting.domains)} domains.{seeds}"
    accuracy = comparing.beside(
        f"{setting.title}: accuracy by batch size, published and measured",
        {str(size): value for size, value in PUBLISHED.items()},
        {str(size): interval(list(values.values())) for size, values in reached.items()},
        corner="batch size",
        digits=2,
        caption=f"Accuracy in % {how} Published: ViT-Base on ImageNet-C.",
    )
    difference = comparing.beside(
        f"{setting.title}: difference to batches of {largest}, published and measured",
        {str(size): value - PUBLISHED[largest] for size, value in PUBLISHED.items()},
        {str(size): gap for size, gap in gaps.items()},
        corner="batch size",
        digits=2,
        sign="+",
        caption=f"Points of accuracy {how}",
    )
    return [accuracy, difference]


def spread(gaps: Mapping[int, Interval]) -> float:
    """The largest difference between two sizes."""
    means = [gap.mean for gap in gaps.values()]
    return max(means) - min(means)


def _answer(setting: Setting, gaps: Mapping[int, Interval]) -> str:
    found = spread(gaps)
    against = "no more than" if found <= SPREAD else "more than"
    return (
        f"On {setting.title}, accuracy differs by at most {found:.2f} points between batches of {min(gaps)} and of "
        f"{max(gaps)}, {against} the paper's {SPREAD:.2f}."
    )


def _holds(gaps: Mapping[int, Interval]) -> Holds:
    if spread(gaps) <= SPREAD:
        return "yes"
    return "no" if any(verdict(gap) != "can't tell" for gap in gaps.values()) else "unclear"

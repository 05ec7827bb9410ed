"""Whether the size of batches matters to NEO."""

from __future__ import annotations

from collections.abc import Mapping

from neotta.evaluate.metrics import Interval
from neotta.evaluate.plan import Plan
from neotta.paper.finding import Holds, gained
from neotta.paper.item import Case, Skip, item
from neotta.paper.results import between
from neotta.paper.study import Setting

PUBLISHED = {1: 56.91, 4: 57.04, 8: 56.99, 16: 57.02, 32: 56.97, 64: 56.98}
"""Accuracy in percent by batch size: ViT-Base on ImageNet-C, 512 samples, scored on the rest."""
SPREAD = max(PUBLISHED.values()) - min(PUBLISHED.values())
"""What the paper calls no significant difference, in points."""


def _runs(setting: Setting) -> list[Plan]:
    samples = setting.held_out_samples
    sizes = [size for size in PUBLISHED if size <= samples]
    return [setting.plan("neo", protocol="hold-out", samples=[samples], batch_sizes=sizes)] if sizes else []


@item(
    order=15,
    name="batch-size",
    title="NEO with batches of any size",
    place="Table 4a",
    question="Does the size of the batches matter to NEO?",
    claim="It does not: after the same samples, accuracy differs by no more than 0.13 points between sizes 1 and 64.",
    runs=_runs,
)
def show(case: Case) -> None:
    """Compare every size with the largest, on the same samples."""
    found, setting = case.results(), case.setting
    case.note(*found.failures)
    blocks = {each.block.conditions.batch_size: each for each in found.each() if each.per_seed("neo")}
    reached = {size: blocks[size].per_seed("neo") for size in sorted(blocks)}
    if len(reached) < 2:
        raise Skip
    largest = max(reached)
    gaps = {size: between(values, reached[largest], found.comparison.metric) for size, values in reached.items()}
    how = f"on the rest after {setting.held_out_samples} samples, mean over {len(setting.domains)} domains."
    case.beside(
        "accuracy by batch size",
        {str(size): value for size, value in PUBLISHED.items()},
        {str(size): blocks[size].means["neo"] for size in reached},
        corner="batch size",
        digits=2,
        caption=f"Accuracy in % {how}{found.seeds} Published: ViT-Base on ImageNet-C.",
    )
    case.beside(
        f"difference to batches of {largest}",
        {str(size): value - PUBLISHED[largest] for size, value in PUBLISHED.items()},
        {str(size): gap for size, gap in gaps.items()},
        corner="batch size",
        digits=2,
        sign="+",
        caption=f"Points of accuracy {how}{found.seeds}",
    )
    against = "no more than" if spread(gaps) <= SPREAD else "more than"
    case.say(
        f"accuracy differs by at most {spread(gaps):.2f} points between batches of {min(gaps)} and of {largest}, "
        f"{against} the paper's {SPREAD:.2f}",
        _holds(gaps),
    )


def spread(gaps: Mapping[int, Interval]) -> float:
    """The largest difference between two sizes."""
    means = [gap.mean for gap in gaps.values()]
    return max(means) - min(means)


def _holds(gaps: Mapping[int, Interval]) -> Holds:
    if spread(gaps) <= SPREAD:
        return "yes"
    return "no" if any(gained(gap) != "unclear" for gap in gaps.values()) else "unclear"

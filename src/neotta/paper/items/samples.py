"""Accuracy on the rest against the number of samples adapted on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neotta.evaluate.metrics import Interval
from neotta.evaluate.plan import Plan
from neotta.paper import comparing, curves
from neotta.paper.evidence import Evidence
from neotta.paper.item import Finding, Holds, Item
from neotta.paper.study import Setting
from neotta.report.figures import Figure, legend, lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

NUMBERS = tuple(2**power for power in range(10))
ENOUGH = 64
"""The number of samples after which, the paper says, more improve accuracy only marginally."""
PUBLISHED = {"1": 1.5}
"""Gain in points by number of samples, ViT-Base on ImageNet-C; of the others only a figure was printed."""


class Samples(Item):
    """Figure 5a."""

    name = "figure-samples"
    title = "How many samples NEO needs"
    place = "Figure 5a"
    question = "How does accuracy on other images depend on the number of samples adapted on?"
    claim = "One sample is enough to gain accuracy (1.5 points), and 64 samples gain nearly all there is to gain."

    def plans(self, setting: Setting) -> list[Plan]:
        """NEO frozen after a few samples, scored on the rest."""
        numbers = numbers_of_samples(setting)
        return [setting.plan("none", "neo", protocol="hold-out", samples=numbers)] if numbers else []

    def find(self, evidence: Evidence) -> Finding:
        """Follow the gain over the number of samples."""
        finding = Finding()
        for setting in evidence.settings:
            comparison = comparing.compared(evidence.records(*self.plans(setting)))
            found = {} if comparison is None else curves.along(comparison, lambda conditions: conditions.samples)
            gains = curves.gains(found.get("neo", []))
            if comparison is None or not gains:
                continue
            caption = (
                f"Accuracy in % on the images that were not adapted on, mean over {len(setting.domains)} domains."
                f"{comparing.seeds(comparison.blocks[0])}"
            )
            finding.parts.append(_figure(setting, found))
            finding.parts.append(curves.table(f"{setting.title}: accuracy by samples", "samples", found, caption))
            finding.parts.append(
                comparing.beside(
                    f"{setting.title}: gain by samples, published and measured",
                    PUBLISHED,
                    {f"{number:g}": gain for number, gain in gains.items()},
                    corner="samples",
                    sign="+",
                    caption="Points of accuracy over no adaptation. Published: ViT-Base on ImageNet-C.",
                )
            )
            finding.say(_answer(setting, gains), _holds(gains))
            finding.notes += curves.failures(comparison)
        return finding


def numbers_of_samples(setting: Setting, most: int = NUMBERS[-1]) -> list[int]:
    """1, 2, 4, ... samples: no more than the study allows, and at least as many left to score."""
    return [number for number in NUMBERS if number <= min(most, setting.held_out_samples)]


def _figure(setting: Setting, found: curves.Curves) -> Figure:
    def draw(canvas: Canvas) -> None:
        axes = canvas.subplots()
        lines(axes, {label: curves.means_of(points) for label, points in found.items()})
        curves.doubling(axes, [point.x for point in found["neo"]])
        axes.set_xlabel("samples adapted on")
        axes.set_ylabel("accuracy on the rest (%)")
        legend(canvas, axes)

    return Figure(
        comparing.file_name("samples", setting.title),
        f"{setting.title}: accuracy by the number of samples adapted on",
        draw,
        curves.rows("samples", found),
        "Mean over the domains, band: 95 % interval over seeds.",
        (7.0, 3.2),
    )


def _answer(setting: Setting, gains: dict[float, Interval]) -> str:
    first, last = min(gains), max(gains)
    between = ENOUGH in gains and first < ENOUGH < last
    middle = f", with {ENOUGH} {comparing.gain_words(gains[ENOUGH])}" if between else ""
    return (
        f"On {setting.title}, adapting on {comparing.some(first, 'sample')} gives "
        f"{comparing.gain_words(gains[first])}{comparing.doubt(gains[first])}{middle} and with {last:g}, the most "
        f"tried, {comparing.gain_words(gains[last])}{comparing.doubt(gains[last])}."
    )


def _holds(gains: dict[float, Interval]) -> Holds:
    if 1 not in gains:
        return "unclear"
    parts = [comparing.claim_of_gain(gains[1])]
    if max(gains) > ENOUGH and ENOUGH in gains:
        parts.append(curves.nearly(gains[ENOUGH], gains[max(gains)]))
    return comparing.together(parts)

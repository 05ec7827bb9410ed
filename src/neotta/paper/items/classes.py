"""Accuracy against the number of classes among the samples adapted on."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from neotta.evaluate.comparison import Comparison
from neotta.evaluate.metrics import Interval
from neotta.evaluate.naming import Conditions
from neotta.evaluate.plan import Plan
from neotta.paper import comparing, curves
from neotta.paper.evidence import Evidence
from neotta.paper.item import Finding, Holds, Item
from neotta.paper.study import Setting
from neotta.report.figures import Figure, legend, lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

NUMBERS = (1, 2, 5, 10, 20, 50)
SAMPLES = 50
FEWEST = 10
"""With fewer samples than these, the mean is mostly noise, whatever their classes."""
LEAST = 3.0
"""The gain in points that the paper tells of."""
SCORED = 4096
"""How many other samples the published protocol scores."""

Budgets = dict[int, dict[str, list[curves.Point]]]
"""Curves over the number of classes, by the number of samples adapted on."""


class Classes(Item):
    """Figure 5b."""

    name = "figure-classes"
    title = "How many classes NEO needs to see"
    place = "Figure 5b"
    question = "How does accuracy depend on the number of classes among the samples adapted on?"
    claim = "50 samples of a single class are enough to gain more than 3 points, and 50 classes hardly gain more."

    def plans(self, setting: Setting) -> list[Plan]:
        """The same number of samples, from more and more classes."""
        return [
            setting.plan(
                "none",
                "neo",
                protocol="hold-out",
                stream="few-classes",
                stream_options={"classes": classes, "validate": SCORED if setting.images - samples >= SCORED else -1},
                samples=[samples],
            )
            for samples in budgets(setting)
            for classes in numbers(setting, samples)
        ]

    def find(self, evidence: Evidence) -> Finding:
        """Follow the gain over the number of classes."""
        finding = Finding()
        for setting in evidence.settings:
            finding.notes += _reduced(setting)
            comparison = comparing.compared(evidence.records(*self.plans(setting)))
            found = _curves(comparison)
            if comparison is None or not found:
                continue
            finding.parts.append(_figure(setting, found))
            for samples, points in found.items():
                title = f"{setting.title}: accuracy after {samples} samples, by their classes"
                caption = f"Accuracy in % on other images of all classes, mean over {len(setting.domains)} domains."
                caption += comparing.seeds(comparison.blocks[0])
                finding.parts.append(curves.table(title, "classes", points, caption))
            gains = {samples: curves.gains(points["neo"]) for samples, points in found.items()}
            finding.say(_answer(setting, gains), _holds(gains))
            finding.notes += curves.failures(comparison)
        return finding


def budgets(setting: Setting) -> list[int]:
    """How many samples to adapt on: 50, and where one class has not so many images, also as many as every class has."""
    most = min(SAMPLES, setting.held_out_samples)
    if setting.fewest < 1 or most < 1:
        return []
    return [setting.fewest, most] if FEWEST <= setting.fewest < most else [most]


def numbers(setting: Setting, samples: int) -> list[int]:
    """Numbers of classes that have enough images, and of which each gets a sample."""
    possible = min(setting.classes, samples)
    return [number for number in NUMBERS if number <= possible and number * setting.fewest >= samples]


def _reduced(setting: Setting) -> list[str]:
    """What of the published protocol the data does not allow."""
    if not setting.fewest:
        return [f"{setting.title}: without labels nobody knows which samples are of one class."]
    missing = [str(number) for number in NUMBERS if number not in numbers(setting, SAMPLES)]
    said = (
        f"{setting.title}: {SAMPLES} samples of {comparing.listed(missing)} classes are not possible: it has "
        f"{comparing.some(setting.classes, 'class')}, the smallest with {comparing.some(setting.fewest, 'image')}."
    )
    return [said] if missing else []


def _curves(comparison: Comparison | None) -> Budgets:
    if comparison is None:
        return {}
    found: Budgets = {}
    for samples in sorted({block.conditions.samples for block in comparison.blocks}):
        blocks = tuple(block for block in comparison.blocks if block.conditions.samples == samples)
        found[samples] = curves.along(replace(comparison, blocks=blocks), _classes)
    return {samples: points for samples, points in found.items() if curves.gains(points.get("neo", []))}


def _classes(conditions: Conditions) -> int:
    return int(json.loads(conditions.stream_options)["classes"])


def _figure(setting: Setting, found: Budgets) -> Figure:
    def draw(canvas: Canvas) -> None:
        every = canvas.subplots(1, len(found), squeeze=False, sharey=True)[0]
        for axes, (samples, points) in zip(every, found.items(), strict=True):
            lines(axes, {label: curves.means_of(each) for label, each in points.items()})
            curves.doubling(axes, [point.x for point in points["neo"]])
            axes.set_xlabel(f"classes among the {samples} samples adapted on")
        every[0].set_ylabel("accuracy (%)")
        legend(canvas, every[0])

    return Figure(
        comparing.file_name("classes", setting.title),
        f"{setting.title}: accuracy by the number of classes adapted on",
        draw,
        [{"samples": samples, **row} for samples, points in found.items() for row in curves.rows("classes", points)],
        "Mean over the domains, band: 95 % interval over seeds.",
        (7.0, 3.2),
    )


def _answer(setting: Setting, gains: dict[int, dict[float, Interval]]) -> str:
    said = []
    for samples, found in gains.items():
        parts = [
            f"{comparing.gain_words(found[number])} if they are of {comparing.some(number, 'class')}"
            f"{comparing.doubt(found[number])}"
            for number in dict.fromkeys([min(found), max(found)])
        ]
        said.append(f"{samples} samples give {comparing.listed(parts)}")
    return f"On {setting.title}, {'; '.join(said)}."


def _holds(gains: dict[int, dict[float, Interval]]) -> Holds:
    """By the largest number of samples that could be of a single class."""
    found = next((each for _, each in sorted(gains.items(), reverse=True) if 1 in each), None)
    if found is None:
        return "unclear"
    parts = [comparing.claim_of_gain(found[1]), comparing.claim_of_gain(found[1], LEAST)]
    if max(found) > 1:
        parts.append(curves.nearly(found[1], found[max(found)]))
    return comparing.together(parts)

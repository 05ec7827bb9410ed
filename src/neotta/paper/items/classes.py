"""Accuracy against the number of classes among the samples adapted on."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

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
NEARLY = 0.9
"""Which part of the gain is nearly all of it."""
SCORED = 4096
"""How many other samples the published protocol scores."""


class Classes(Item):
    """Figure 5b."""

    name = "figure-classes"
    title = "How many classes NEO needs to see"
    place = "Figure 5b"
    question = "How does accuracy depend on the number of classes among the samples adapted on?"
    claim = "Samples of a single class are enough to gain more than 3 points, and 50 classes hardly gain more."

    def plans(self, setting: Setting) -> list[Plan]:
        """The same number of samples, from more and more classes."""
        samples = _samples(setting)
        scored = SCORED if setting.images - samples >= SCORED else -1
        return [
            setting.plan(
                "none",
                "neo",
                protocol="hold-out",
                stream="few-classes",
                stream_options={"classes": classes, "validate": scored},
                samples=[samples],
            )
            for classes in _numbers(setting)
        ]

    def find(self, evidence: Evidence) -> Finding:
        """Follow the gain over the number of classes."""
        finding, answers, holds = Finding(""), [], []
        for setting in evidence.settings:
            comparison = comparing.compared(evidence.records(*self.plans(setting)))
            found = {} if comparison is None else curves.along(comparison, _classes)
            gains = curves.gains(found.get("neo", []))
            finding.notes += _impossible(setting)
            if comparison is None or not gains:
                continue
            caption = (
                f"Accuracy in % on other images of all classes after adapting on {_samples(setting)} samples, mean "
                f"over {len(setting.domains)} domains.{comparing.seeds(comparison.blocks[0])}"
            )
            finding.parts.append(_figure(setting, found))
            finding.parts.append(curves.table(f"{setting.title}: accuracy by classes", "classes", found, caption))
            answers.append(_answer(setting, gains))
            holds.append(_holds(gains))
            finding.notes += curves.failures(comparison)
        finding.answer = " ".join(answers) or "Nothing could be measured."
        finding.holds = comparing.all_hold(holds)
        return finding


def _samples(setting: Setting) -> int:
    """How many to adapt on: at least as many are left to score."""
    return min(SAMPLES, setting.held_out_samples)


def _numbers(setting: Setting) -> list[int]:
    """Numbers of classes that have enough images, and of which each gets a sample."""
    samples, per_class = _samples(setting), setting.images / max(1, setting.classes)
    return [number for number in NUMBERS if number <= min(setting.classes, samples) and number * per_class >= samples]


def _impossible(setting: Setting) -> list[str]:
    """Which numbers of classes were not tried, and why."""
    missing = [str(number) for number in NUMBERS if number not in _numbers(setting)]
    per_class = comparing.some(setting.images // max(1, setting.classes), "image")
    said = (
        f"{setting.title}: {comparing.listed(missing)} classes were not tried: it has "
        f"{comparing.some(setting.classes, 'class')} of about {per_class}, and {_samples(setting)} samples are wanted."
    )
    return [said] if missing else []


def _classes(conditions: Conditions) -> int:
    return int(json.loads(conditions.stream_options)["classes"])


def _figure(setting: Setting, found: curves.Curves) -> Figure:
    def draw(canvas: Canvas) -> None:
        axes = canvas.subplots()
        lines(axes, {label: curves.means_of(points) for label, points in found.items()})
        curves.doubling(axes, [point.x for point in found["neo"]])
        axes.set_xlabel(f"classes among the {_samples(setting)} samples adapted on")
        axes.set_ylabel("accuracy (%)")
        legend(canvas, axes)

    return Figure(
        comparing.file_name("classes", setting.title),
        f"{setting.title}: accuracy by the number of classes adapted on",
        draw,
        curves.rows("classes", found),
        "Mean over the domains, band: 95 % interval over seeds.",
        (7.0, 3.2),
    )


def _answer(setting: Setting, gains: dict[float, Interval]) -> str:
    parts = [
        f"{comparing.gain_words(gains[number])} with {comparing.some(number, 'class')}{comparing.doubt(gains[number])}"
        for number in dict.fromkeys([min(gains), max(gains)])
    ]
    return f"On {setting.title}, {_samples(setting)} samples give {comparing.listed(parts)}."


def _holds(gains: dict[float, Interval]) -> Holds:
    if 1 not in gains:
        return "unclear"
    most = gains[max(gains)].mean
    parts = [comparing.claim_of_gain(gains[1])]
    if max(gains) > 1:
        parts.append("yes" if gains[1].mean >= NEARLY * most > 0 else "no")
    return comparing.together(parts)

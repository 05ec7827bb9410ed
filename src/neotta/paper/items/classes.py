"""Accuracy against the number of classes among the samples adapted on."""

from __future__ import annotations

import json
from typing import Any

from neotta.evaluate.metrics import Interval
from neotta.evaluate.plan import Plan
from neotta.paper.curves import curve_rows, gains_along, mean_lines
from neotta.paper.finding import Holds, gained, nearly, together
from neotta.paper.item import Case, Skip, item
from neotta.paper.study import Setting
from neotta.paper.words import doubt, listed, points, some
from neotta.report.charts import Panel, line_chart

NUMBERS = (1, 2, 5, 10, 20, 50)
SAMPLES = 50
FEWEST = 10
"""With fewer samples than these, the mean is mostly noise, whatever their classes."""
LEAST = 3.0
"""The gain in points that the paper tells of."""
SCORED = 4096
"""How many other samples the published protocol scores."""


def _runs(setting: Setting) -> list[Plan]:
    return [
        setting.plan(
            "none",
            "neo",
            protocol="hold-out",
            stream="few-classes",
            stream_options={"classes": classes, "disjoint": True, "validate": _scored(setting, samples, classes)},
            samples=[samples],
        )
        for samples in budgets(setting)
        for classes in numbers(setting, samples)
    ]


@item(
    order=10,
    name="classes",
    title="How many classes NEO needs to see",
    place="Figure 5b",
    question="How does accuracy depend on the number of classes among the samples adapted on?",
    claim="50 samples of a single class are enough to gain more than 3 points, and 50 classes hardly gain more.",
    runs=_runs,
)
def show(case: Case) -> None:
    """Follow the gain over the number of classes, for each number of samples."""
    case.note(*_reduced(case.setting))
    results = case.results()
    curves = {}
    for count in sorted({each.block.conditions.samples for each in results.each()}):
        curves[count] = results.only("samples", count).curves(_classes)
    found = {count: curve for count, curve in curves.items() if gains_along(curve.get("neo", []))}
    if not found:
        raise Skip
    panels = [
        Panel(mean_lines(curve), f"classes among the {count} samples adapted on", ticks=[p.x for p in curve["neo"]])
        for count, curve in found.items()
    ]
    panels[0] = panels[0]._replace(y="accuracy (%)")
    case.figure(
        "classes",
        "accuracy by the number of classes adapted on",
        line_chart(*panels),
        [{"samples": count, **row} for count, curve in found.items() for row in curve_rows("classes", curve)],
        "On images of the classes that were not adapted on. Mean over the domains, band: 95 % interval over images and "
        "seeds.",
        height=3.2,
    )
    where = f"mean over {some(len(case.setting.domains), 'domain')}"
    caption = f"Accuracy in % on images of the classes that were not adapted on, {where}."
    for count, curve in found.items():
        heading = f"accuracy after {count} samples, by their classes"
        case.curve(heading, "classes", curve, caption + results.seeds)
    gains = {count: gains_along(curve["neo"]) for count, curve in found.items()}
    case.say("; ".join(_answer(count, gain) for count, gain in gains.items()), _holds(gains))
    case.note(*results.failures)


def _scored(setting: Setting, samples: int, classes: int) -> int:
    """How many images of the other classes to score: as many as the published protocol, or all if there are fewer."""
    others = (setting.classes - classes) * setting.fewest
    return SCORED if others >= SCORED else -1


def budgets(setting: Setting) -> list[int]:
    """How many samples to adapt on: 50, and if one class has fewer images, also as many as every class has."""
    most = min(SAMPLES, setting.held_out_samples)
    if setting.fewest < 1 or most < 1:
        return []
    return [setting.fewest, most] if FEWEST <= setting.fewest < most else [most]


def numbers(setting: Setting, samples: int) -> list[int]:
    """Numbers of classes that have enough images, of which each gets a sample, and which leave others to score."""
    possible = min(setting.classes - 1, samples)
    return [number for number in NUMBERS if number <= possible and number * setting.fewest >= samples]


def _reduced(setting: Setting) -> list[str]:
    """What of the published protocol the data does not allow."""
    if not setting.fewest:
        return [f"{setting.title}: has no labels, which are needed to choose samples of one class."]
    missing = [str(number) for number in NUMBERS if number not in numbers(setting, SAMPLES)]
    said = (
        f"{setting.title}: {SAMPLES} samples of {listed(missing)} classes are not possible: it has "
        f"{some(setting.classes, 'class')}, the smallest with {some(setting.fewest, 'image')}, and the images of other "
        "classes are scored."
    )
    return [said] if missing else []


def _classes(conditions: Any) -> int:
    return int(json.loads(conditions.stream_options)["classes"])


def _answer(samples: int, gains: dict[float, Interval]) -> str:
    parts = [
        f"{points(gains[number])} if they are of {some(number, 'class')}{doubt(gains[number])}"
        for number in dict.fromkeys([min(gains), max(gains)])
    ]
    return f"{samples} samples give {listed(parts)}"


def _holds(gains: dict[int, dict[float, Interval]]) -> Holds:
    """By the largest number of samples that could be of a single class."""
    found = next((each for _, each in sorted(gains.items(), reverse=True) if 1 in each), None)
    if found is None:
        return "unclear"
    parts = [gained(found[1]), gained(found[1], LEAST)]
    if max(found) > 1:
        parts.append(nearly(found[1], found[max(found)]))
    return together(parts)

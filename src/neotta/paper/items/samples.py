"""How much NEO has to see: samples adapted on, classes among them, and what a few samples do."""

from __future__ import annotations

import json
from typing import Any

from neotta.evaluate.domains import CLEAN
from neotta.evaluate.metrics import Interval
from neotta.evaluate.plan import Plan
from neotta.paper.claims import Holds, doubt, doubted, gained, listed, nearly, points, reached, some, together
from neotta.paper.item import Report, Skip, item, need
from neotta.paper.measured import Measured
from neotta.paper.study import Setting
from neotta.paper.tables import Curves, curve_rows, curve_table, gains_along
from neotta.report.grids import grid


def _numbers_of_samples(setting: Setting, most: int) -> list[int]:
    # no more than the study allows, and at least as many left to score
    return [2**power for power in range(10) if 2**power <= min(most, setting.held_out_samples)]


# ---- samples

EVERYTHING = 50_000
"""The last point of the paper's figure: all images of ImageNet-C, scored while they are adapted on."""
ENOUGH = 64
"""The number of samples after which, the paper says, more improve accuracy only marginally."""
SCORED = "Scored on the images that were not adapted on; where all are adapted on, on these, while adapting."
PUBLISHED = {1: 1.5, 64: 3.6}
"""Gain in points by number of samples, ViT-Base on ImageNet-C; of the others only a figure was printed."""


def _by_samples(setting: Setting) -> list[Plan]:
    numbers = _numbers_of_samples(setting, 512)
    if not numbers:
        return []
    last = -1 if setting.images <= EVERYTHING else EVERYTHING
    held_out = setting.plan("none", "neo", order="hold-out", samples=numbers)
    return [held_out, setting.plan("none", "neo", samples=[last])]


@item(
    title="How many samples NEO needs",
    place="Figure 5a and abstract",
    claim="One sample is enough to gain 1.5 points of accuracy; 64 samples gain 3.6, nearly all there is to gain.",
    runs=_by_samples,
)
def samples(report: Report) -> None:
    """How does accuracy on other images depend on the number of samples adapted on?"""
    results, images = report.results(), report.setting.images
    curves = results.curves(lambda run: float(run.samples if run.samples > 0 else images))
    last = {float(images): f"all {images}"} if images <= EVERYTHING else {}
    gains = need(gains_along(curves.get("neo", [])))
    report.lines(
        "samples",
        "gain by the number of samples adapted on",
        {"": curves},
        curve_rows("samples", curves),
        f"{SCORED} Mean over the domains, band: 95 % interval over images and seeds.",
        x="samples adapted on",
        y="gain over none (points)",  # accuracies at different numbers are of other images
        names=last,
    )
    what = f"Accuracy in %, mean over {len(report.setting.domains)} domains. {SCORED}{results.basis}"
    report.curve("accuracy by samples", "samples", curves, what, names=last)
    report.beside(
        "gain by samples",
        {str(number): gain for number, gain in PUBLISHED.items()},
        {last.get(number, f"{number:g}"): gain for number, gain in gains.items()},
        corner="samples",
        sign="+",
        caption="Points of accuracy over no adaptation. Published: ViT-Base on ImageNet-C.",
    )
    first, most = min(gains), max(gains)
    middle = f", with {ENOUGH} {points(gains[ENOUGH])}" if ENOUGH in gains and first < ENOUGH < most else ""
    report.say(
        f"adapting on {some(first, 'sample')} gives {doubted(gains[first])}{middle} and with "
        f"{last.get(most, f'{most:g}')}, the most tried, {doubted(gains[most])}",
        _enough(gains),
    )


def _enough(gains: dict[float, Interval]) -> Holds:
    if not all(number in gains for number in PUBLISHED):
        return "unclear"
    parts = [reached(gains[number], gain) for number, gain in PUBLISHED.items()]
    if max(gains) > ENOUGH:
        parts.append(nearly(gains[ENOUGH], gains[max(gains)]))
    return together(parts)


# ---- classes

CLASSES = (1, 2, 5, 10, 20, 50)
OF_CLASSES = 50
"""The number of samples of these classes."""
FEWEST = 10
"""With fewer samples than these, the mean is mostly noise, whatever their classes."""
LEAST = 3.0
"""The gain in points that the paper tells of."""
OTHERS = 4096
"""How many samples of other classes the published protocol scores; fewer are all scored."""


def _by_classes(setting: Setting) -> list[Plan]:
    most, fewest, plans = min(OF_CLASSES, setting.held_out_samples), setting.fewest, []
    budgets = [fewest, most] if FEWEST <= fewest < most else [most]  # also as many as every class has
    for samples in budgets if fewest and most else ():
        scored = OTHERS if setting.study.held_out_samples < 0 else min(OTHERS, setting.study.held_out_samples)
        for classes in _numbers_of_classes(setting, samples):
            how = {"classes": classes, "disjoint": True}
            entries: dict[str, Any] = {"order": "few-classes", "order_options": how, "samples": [samples]}
            entries["held_out_samples"] = scored
            plans.append(setting.plan("none", "neo", **entries))
    return plans


def _numbers_of_classes(setting: Setting, samples: int) -> list[int]:
    # with enough images, of which each class gets a sample, and others left to score
    possible = min(setting.classes - 1, samples)
    return [number for number in CLASSES if number <= possible and number * setting.fewest >= samples]


@item(
    title="How many classes NEO needs to see",
    place="Figure 5b",
    claim="50 samples of a single class are enough to gain more than 3 points, and 50 classes hardly gain more.",
    runs=_by_classes,
)
def classes(report: Report) -> None:
    """How does accuracy depend on the number of classes among the samples adapted on?"""
    report.note(*_not_possible(report.setting))
    results = report.results()
    counts = sorted({each.conditions.samples for each in results.each()})
    every = {
        count: results.only("samples", count).curves(lambda run: json.loads(run.order_options)["classes"])
        for count in counts
    }
    by_count = need({count: curves for count, curves in every.items() if gains_along(curves.get("neo", []))})
    report.lines(
        "classes",
        "gain by the number of classes adapted on",
        {f"among the {count} samples adapted on": curves for count, curves in by_count.items()},
        [{"samples": count, **row} for count, curves in by_count.items() for row in curve_rows("classes", curves)],
        "On images of the classes that were not adapted on. Mean over the domains, band: 95 % interval over images and "
        "seeds.",
        x="classes",
        y="gain over none (points)",
    )
    where = f"mean over {some(len(report.setting.domains), 'domain')}"
    caption = f"Accuracy in % on images of the classes that were not adapted on, {where}."
    for count, curves in by_count.items():
        report.curve(f"accuracy after {count} samples, by their classes", "classes", curves, caption + results.basis)
    gains = {count: gains_along(curves["neo"]) for count, curves in by_count.items()}
    report.say("; ".join(_extremes(count, gain) for count, gain in gains.items()), _one_class_is_enough(gains))


def _not_possible(setting: Setting) -> list[str]:
    if not setting.fewest:
        return [f"{setting.title}: has no labels, which are needed to choose samples of one class."]
    missing = [str(number) for number in CLASSES if number not in _numbers_of_classes(setting, OF_CLASSES)]
    said = (
        f"{setting.title}: {OF_CLASSES} samples of {listed(missing)} classes are not possible: it has "
        f"{some(setting.classes, 'class')}, the smallest with {some(setting.fewest, 'image')}, and the images of other "
        "classes are scored."
    )
    return [said] if missing else []


def _extremes(samples: int, gains: dict[float, Interval]) -> str:
    parts = [
        f"{points(gains[number])} if they are of {some(number, 'class')}{doubt(gains[number])}"
        for number in dict.fromkeys([min(gains), max(gains)])
    ]
    return f"{samples} samples give {listed(parts)}"


def _one_class_is_enough(gains: dict[int, dict[float, Interval]]) -> Holds:
    # by the largest number of samples that could be of a single class
    curve = next((each for _, each in sorted(gains.items(), reverse=True) if 1 in each), None)
    if curve is None:
        return "unclear"
    parts = [gained(curve[1]), gained(curve[1], LEAST)]
    if max(curve) > 1:
        parts.append(nearly(curve[1], curve[max(curve)]))
    return together(parts)


# ---- few samples

RULES = ("none", "neo:shrinkage=none|james-stein")
PLAIN, SHRUNK = "neo", "neo, shrunk"
NAMES = {"neo shrinkage=None": PLAIN, "neo shrinkage=james-stein": SHRUNK}
SHIFTED = "shifted"


def _first_samples(setting: Setting) -> list[Plan]:
    numbers = _numbers_of_samples(setting, 64)
    if not numbers:
        return []
    return [
        setting.plan(*RULES, clean=True, order="hold-out", samples=numbers),
        setting.plan(*RULES, clean=True, batch_sizes=[1]),
    ]


@item(title="Few samples, with and without shrinkage", runs=_first_samples)
def few_samples(report: Report) -> None:
    """What does NEO do after a few samples, and does it help to scale the mean down while they are few?"""
    results = [Measured.of(report.evidence.records(plan)) for plan in report.plans]
    frozen, online = results or (None, None)
    after, along = _by_place(frozen), _by_place(online)
    if frozen is None or online is None or SHIFTED not in after or SHIFTED not in along:
        raise Skip
    shifted = f"mean over {some(len(report.setting.domains), 'shifted domain')}"
    words = {SHIFTED: shifted, CLEAN: "clean images"}
    report.lines(
        "few samples",
        "gain by the number of samples, with and without shrinkage",
        {words[where]: curves for where, curves in after.items()},
        [{"where": where, **row} for where, curves in after.items() for row in curve_rows("samples", curves)],
        "Band: 95 % interval over images and seeds. Below zero, adapting costs accuracy.",
        x="samples adapted on",
        y="gain over none on the rest (points)",
    )
    for where, curves in after.items():
        heading = f"accuracy after few samples, {words[where]}"
        report.curve(heading, "samples", curves, f"Accuracy in % on the rest.{frozen.basis}")
    tables = {where: curve_table("", "samples", curves, "") for where, curves in along.items()}
    shown = {words[where]: [text for text, _ in table.grid.rows[0][1]] for where, table in tables.items()}
    report.table(
        "accuracy online, one image at a time",
        grid("images", tables[SHIFTED].grid.columns, shown),
        [{"where": where, **row} for where, table in tables.items() for row in table.data],
        f"Accuracy in % on {along[SHIFTED][PLAIN][0].x:g} images while adapting to them, batch size 1.{online.basis}",
    )
    said = []
    for where, curves in after.items():
        plain, shrunk = (gains_along(curves[name]) for name in (PLAIN, SHRUNK))
        number = min(plain, key=lambda number: plain[number].mean)
        said.append(
            f"{'on clean images' if where == CLEAN else 'under shift'} NEO is at its worst after "
            f"{some(number, 'sample')} with {doubted(plain[number])}, shrunk {points(shrunk[number])}"
        )
    single, of_shrunk = (along[SHIFTED][name][0].gain for name in (PLAIN, SHRUNK))
    said.append(f"with single images online it gains {doubted(single)}, shrunk {doubted(of_shrunk)}")
    report.say("; ".join(said))
    report.note(*frozen.failures, *online.failures)
    if CLEAN not in after:
        report.note(f"{report.title}: there are no clean images to see what NEO costs on them.")


def _by_place(results: Measured | None) -> dict[str, Curves]:
    if results is None:
        return {}
    places = {SHIFTED: None, CLEAN: CLEAN}
    curves = {where: results.curves(domain=domain, names=NAMES) for where, domain in places.items()}
    return {where: each for where, each in curves.items() if each}

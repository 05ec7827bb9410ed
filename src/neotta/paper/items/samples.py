"""Accuracy on the rest against the number of samples adapted on."""

from __future__ import annotations

from neotta.evaluate.metrics import Interval
from neotta.evaluate.plan import Plan
from neotta.paper.curves import curve_rows, gains_along, mean_lines
from neotta.paper.finding import Holds, gained, nearly, together
from neotta.paper.item import Case, Skip, item
from neotta.paper.study import Setting
from neotta.paper.words import doubted, points, some
from neotta.report.charts import Panel, line_chart

MOST = 512
EVERYTHING = 50_000
"""The last point of the paper's figure: all images of ImageNet-C, scored while they are adapted on."""
ENOUGH = 64
"""The number of samples after which, the paper says, more improve accuracy only marginally."""
SCORED = "Scored on the images that were not adapted on; where all are adapted on, on these, while adapting."
PUBLISHED = {"1": 1.5}
"""Gain in points by number of samples, ViT-Base on ImageNet-C; of the others only a figure was printed."""


def _runs(setting: Setting) -> list[Plan]:
    numbers = numbers_of_samples(setting)
    if not numbers:
        return []
    last = -1 if setting.images <= EVERYTHING else EVERYTHING
    held_out = setting.plan("none", "neo", protocol="hold-out", samples=numbers)
    return [held_out, setting.plan("none", "neo", samples=[last])]


@item(
    order=9,
    name="samples",
    title="How many samples NEO needs",
    place="Figure 5a",
    question="How does accuracy on other images depend on the number of samples adapted on?",
    claim="One sample is enough to gain accuracy (1.5 points), and 64 samples gain nearly all there is to gain.",
    runs=_runs,
)
def show(case: Case) -> None:
    """Follow the gain over the number of samples."""
    results = case.results()
    found = results.curves(lambda run: float(run.samples if run.samples > 0 else case.setting.images))
    last = {float(case.setting.images): f"all {case.setting.images}"} if case.setting.images <= EVERYTHING else {}
    gains = gains_along(found.get("neo", []))
    if not gains:
        raise Skip
    ticks = [point.x for point in found["neo"]]
    case.figure(
        "samples",
        "accuracy by the number of samples adapted on",
        line_chart(Panel(mean_lines(found), "samples adapted on", "accuracy (%)", ticks=ticks, names=last)),
        curve_rows("samples", found),
        f"{SCORED} Mean over the domains, band: 95 % interval over images and seeds.",
        height=3.2,
    )
    what = f"Accuracy in %, mean over {len(case.setting.domains)} domains. {SCORED}{results.seeds}"
    case.curve("accuracy by samples", "samples", found, what, names=last)
    case.beside(
        "gain by samples",
        PUBLISHED,
        {last.get(number, f"{number:g}"): gain for number, gain in gains.items()},
        corner="samples",
        sign="+",
        caption="Points of accuracy over no adaptation. Published: ViT-Base on ImageNet-C.",
    )
    first, most = min(gains), max(gains)
    middle = f", with {ENOUGH} {points(gains[ENOUGH])}" if ENOUGH in gains and first < ENOUGH < most else ""
    case.say(
        f"adapting on {some(first, 'sample')} gives {doubted(gains[first])}{middle} and with "
        f"{last.get(most, f'{most:g}')}, the most tried, {doubted(gains[most])}",
        _holds(gains),
    )
    case.note(*results.failures)


def numbers_of_samples(setting: Setting, most: int = MOST) -> list[int]:
    """1, 2, 4, ... samples: no more than the study allows, and at least as many left to score."""
    return [2**power for power in range(10) if 2**power <= min(most, setting.held_out_samples)]


def _holds(gains: dict[float, Interval]) -> Holds:
    if 1 not in gains:
        return "unclear"
    parts = [gained(gains[1])]
    if max(gains) > ENOUGH and ENOUGH in gains:
        parts.append(nearly(gains[ENOUGH], gains[max(gains)]))
    return together(parts)

"""The zero start of NEO-Continual's moving average, and what it costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neotta.evaluate.comparison import Comparison
from neotta.evaluate.metrics import Interval
from neotta.evaluate.plan import Plan
from neotta.paper import comparing, curves
from neotta.paper.evidence import Evidence
from neotta.paper.item import Finding, Item
from neotta.paper.study import Setting
from neotta.report.figures import INK, Figure, legend, lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

METHODS = ("none", "neo", "neo-continual:debias=false|true")
PLAIN, DEBIASED = "neo-continual", "neo-continual, debiased"
NAMES = {"neo-continual debias=False": PLAIN, "neo-continual debias=True": DEBIASED}


class ContinualStart(Item):
    """Whether to divide the zero start out of the moving average."""

    name = "continual-start"
    title = "The start of NEO-Continual"
    question = "What does it cost that the moving average starts at zero, and does debias make up for it?"

    def plans(self, setting: Setting) -> list[Plan]:
        """Online over the first batches of each domain, and over all domains in a row."""
        plans = [setting.plan(*METHODS, samples=_numbers(setting))]
        return [*plans, setting.plan(*METHODS, protocol="continual")] if len(setting.domains) > 1 else plans

    def find(self, evidence: Evidence) -> Finding:
        """Compare both averages, and NEO, on the same samples."""
        finding = Finding(claimed=False)
        for setting in evidence.settings:
            online, *others = (comparing.compared(evidence.records(plan)) for plan in self.plans(setting))
            continual = others[0] if others else None
            start = _curves(online)
            if online is None or not start:
                continue
            finding.parts.append(_figure(setting, start))
            caption = f"Accuracy in % while adapting, mean over {len(setting.domains)} domains."
            caption += comparing.seeds(online.blocks[0])
            title = f"{setting.title}: accuracy over the first samples of a domain"
            finding.parts.append(curves.table(title, "samples", start, caption))
            row = _curves(continual)
            if continual is not None and row:
                title = f"{setting.title}: accuracy over {len(setting.domains)} domains in a row"
                caption = f"Accuracy in % while adapting without a reset.{comparing.seeds(continual.blocks[0])}"
                finding.parts.append(curves.table(title, "samples per domain", row, caption))
            finding.say(_answer(setting, start, row))
            finding.notes += curves.failures(online) + ([] if continual is None else curves.failures(continual))
        return finding


def _numbers(setting: Setting) -> list[int]:
    """The first batch, twice as many samples, ... up to all of a run."""
    numbers = [setting.study.batch_size * 2**power for power in range(10)]
    return [*(number for number in numbers if number < setting.samples), setting.samples]


def _curves(comparison: Comparison | None) -> dict[str, list[curves.Point]]:
    """Curves over the number of samples, if both averages have one."""
    if comparison is None:
        return {}
    found = curves.along(comparison, lambda conditions: conditions.samples, names=NAMES)
    return found if all(curves.gains(found.get(name, [])) for name in NAMES.values()) else {}


def _figure(setting: Setting, start: curves.Curves) -> Figure:
    def draw(canvas: Canvas) -> None:
        axes = canvas.subplots()
        lines(axes, {name: curves.gains_of(points) for name, points in start.items() if curves.gains(points)})
        axes.axhline(0, color=INK, linewidth=0.8)
        curves.doubling(axes, [point.x for point in start[PLAIN]])
        axes.set_xlabel(f"samples of the domain so far (batches of {setting.study.batch_size})")
        axes.set_ylabel("gain over none (points)")
        legend(canvas, axes)

    return Figure(
        comparing.file_name("continual start", setting.title),
        f"{setting.title}: gain over the first samples of a domain, with and without debias",
        draw,
        curves.rows("samples", start),
        "Accuracy on the samples themselves while adapting, mean over the domains. Band: 95 % interval over seeds.",
        (7.0, 3.4),
    )


def _answer(setting: Setting, start: curves.Curves, row: curves.Curves) -> str:
    plain, debiased = (curves.gains(start[name]) for name in (PLAIN, DEBIASED))
    said = [
        f"{_pair(plain[number], debiased[number])} over the first {comparing.some(number, 'sample')}"
        for number in dict.fromkeys([min(plain), max(plain)])
        if number in debiased
    ]
    if row:
        gains = [row[name][0].gain for name in (PLAIN, DEBIASED)]
        said.append(f"{_pair(*gains)} over {len(setting.domains)} domains in a row")
    return f"On {setting.title}, NEO-Continual gains {'; '.join(said)}."


def _pair(plain: Interval, debiased: Interval) -> str:
    return (
        f"{comparing.gain_words(plain)}{comparing.doubt(plain)} without and {comparing.gain_words(debiased)}"
        f"{comparing.doubt(debiased)} with debias"
    )

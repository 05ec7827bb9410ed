"""NEO with few samples, with and without shrinkage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neotta.evaluate.comparison import Comparison
from neotta.evaluate.domains import CLEAN
from neotta.evaluate.plan import Plan
from neotta.paper import comparing, curves
from neotta.paper.evidence import Evidence
from neotta.paper.item import Finding, Item, Table
from neotta.paper.items.samples import numbers_of_samples
from neotta.paper.study import Setting
from neotta.report.figures import INK, Figure, legend, lines
from neotta.report.grids import Grid

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

MOST = 64
METHODS = ("none", "neo:shrinkage=none|james-stein")
PLAIN, SHRUNK = "neo", "neo, shrunk"
NAMES = {"neo shrinkage=None": PLAIN, "neo shrinkage=james-stein": SHRUNK}
SHIFTED = "shifted"

Places = dict[str, dict[str, list[curves.Point]]]
"""Curves in the shifted domains, and on clean images if there are any."""


class FewSamples(Item):
    """Whether the mean of few samples should be trusted as it is."""

    name = "few-samples"
    title = "Few samples, with and without shrinkage"
    question = "What does NEO do after a few samples, and does it help to scale the mean down while they are few?"

    def plans(self, setting: Setting) -> list[Plan]:
        """Frozen after 1 to 64 samples, and online with single images; on clean images, too."""
        numbers = numbers_of_samples(setting, MOST)
        if not numbers:
            return []
        return [
            setting.plan(*METHODS, clean=True, protocol="hold-out", samples=numbers),
            setting.plan(*METHODS, clean=True, batch_sizes=[1]),
        ]

    def find(self, evidence: Evidence) -> Finding:
        """Follow both rules over the number of samples, in shifted domains and on clean images."""
        finding = Finding(claimed=False)
        for setting in evidence.settings:
            found = [comparing.compared(evidence.records(plan)) for plan in self.plans(setting)]
            frozen, online = found or (None, None)
            after, along = _places(frozen), _places(online)
            if frozen is None or online is None or SHIFTED not in after or SHIFTED not in along:
                continue
            finding.parts.append(_figure(setting, after))
            for where, points in after.items():
                title = f"{setting.title}: accuracy after few samples, {_words(setting, where)}"
                caption = f"Accuracy in % on the rest.{comparing.seeds(frozen.blocks[0])}"
                finding.parts.append(curves.table(title, "samples", points, caption))
            finding.parts.append(_online(setting, along, comparing.seeds(online.blocks[0])))
            finding.say(_answer(setting, after, along))
            finding.notes += [*curves.failures(frozen), *curves.failures(online)]
            if CLEAN not in after:
                finding.notes.append(f"{setting.title}: there are no clean images to see what NEO costs on them.")
        return finding


def _places(comparison: Comparison | None) -> Places:
    """Curves that have both rules, over the number of samples."""
    if comparison is None:
        return {}
    found = {
        SHIFTED: curves.along(comparison, lambda conditions: conditions.samples, names=NAMES),
        CLEAN: curves.along(comparison, lambda conditions: conditions.samples, names=NAMES, domain=CLEAN),
    }
    return {where: each for where, each in found.items() if all(curves.gains(each.get(n, [])) for n in NAMES.values())}


def _words(setting: Setting, where: str) -> str:
    return "clean images" if where == CLEAN else f"mean over {comparing.some(len(setting.domains), 'shifted domain')}"


def _figure(setting: Setting, after: Places) -> Figure:
    def draw(canvas: Canvas) -> None:
        every = canvas.subplots(1, len(after), squeeze=False, sharey=True)[0]
        for axes, (where, found) in zip(every, after.items(), strict=True):
            lines(axes, {name: curves.gains_of(found[name]) for name in NAMES.values()})
            axes.axhline(0, color=INK, linewidth=0.8)
            curves.doubling(axes, [point.x for point in found[PLAIN]])
            axes.set_title(_words(setting, where))
            axes.set_xlabel("samples adapted on")
        every[0].set_ylabel("gain over none on the rest (points)")
        legend(canvas, every[0])

    return Figure(
        comparing.file_name("few samples", setting.title),
        f"{setting.title}: gain by the number of samples, with and without shrinkage",
        draw,
        [{"where": where, **row} for where, found in after.items() for row in curves.rows("samples", found)],
        "Band: 95 % interval over seeds. Below zero, adapting costs accuracy.",
        (7.0, 3.4),
    )


def _online(setting: Setting, along: Places, seeds: str) -> Table:
    """Single images, predicted and adapted to one after the other."""
    tables = [curves.table("", "samples", found, "") for found in along.values()]
    shown = tuple((_words(setting, where), table.grid.rows[0][1]) for where, table in zip(along, tables, strict=True))
    samples = next(iter(along[SHIFTED].values()))[0].x
    return Table(
        f"{setting.title}: accuracy online, one image at a time",
        Grid("images", tables[0].grid.columns, shown),
        [{"where": where, **row} for where, table in zip(along, tables, strict=True) for row in table.data],
        f"Accuracy in % on {samples:g} images while adapting to them, batch size 1.{seeds}",
    )


def _answer(setting: Setting, after: Places, along: Places) -> str:
    said = []
    for where in after:
        plain, shrunk = (curves.gains(after[where][name]) for name in (PLAIN, SHRUNK))
        number = min(plain, key=lambda number: plain[number].mean)
        said.append(
            f"{'on clean images' if where == CLEAN else 'under shift'} NEO is at its worst after "
            f"{comparing.some(number, 'sample')} with {comparing.gain_words(plain[number])}"
            f"{comparing.doubt(plain[number])}, shrunk {comparing.gain_words(shrunk[number])}"
        )
    single = [along[SHIFTED][name][0].gain for name in (PLAIN, SHRUNK)]
    said.append(
        f"with single images online it gains {comparing.gain_words(single[0])}{comparing.doubt(single[0])}, shrunk "
        f"{comparing.gain_words(single[1])}{comparing.doubt(single[1])}"
    )
    return f"On {setting.title}, {'; '.join(said)}."

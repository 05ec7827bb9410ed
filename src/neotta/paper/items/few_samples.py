"""NEO with few samples, with and without shrinkage."""

from __future__ import annotations

from neotta.evaluate.domains import CLEAN
from neotta.evaluate.plan import Plan
from neotta.paper.curves import Point, curve_rows, curve_table, gain_lines, gains_along
from neotta.paper.item import Case, Skip, item
from neotta.paper.items.samples import numbers_of_samples
from neotta.paper.results import Results
from neotta.paper.study import Setting
from neotta.paper.words import doubted, points, some
from neotta.report.charts import Panel, line_chart
from neotta.report.grids import grid

MOST = 64
METHODS = ("none", "neo:shrinkage=none|james-stein")
PLAIN, SHRUNK = "neo", "neo, shrunk"
NAMES = {"neo shrinkage=None": PLAIN, "neo shrinkage=james-stein": SHRUNK}
SHIFTED = "shifted"

Places = dict[str, dict[str, list[Point]]]
"""Curves in the shifted domains, and on clean images if there are any."""


def _runs(setting: Setting) -> list[Plan]:
    numbers = numbers_of_samples(setting, MOST)
    if not numbers:
        return []
    return [
        setting.plan(*METHODS, clean=True, protocol="hold-out", samples=numbers),
        setting.plan(*METHODS, clean=True, batch_sizes=[1]),
    ]


@item(
    order=18,
    name="few-samples",
    title="Few samples, with and without shrinkage",
    question="What does NEO do after a few samples, and does it help to scale the mean down while they are few?",
    runs=_runs,
)
def show(case: Case) -> None:
    """Follow both rules over the number of samples, in shifted domains and on clean images."""
    found = [Results.of(case.evidence.records(plan)) for plan in case.plans]
    frozen, online = found or (None, None)
    after, along = _places(frozen), _places(online)
    if frozen is None or online is None or SHIFTED not in after or SHIFTED not in along:
        raise Skip
    _draw(case, after)
    for where, curves in after.items():
        heading = f"accuracy after few samples, {_words(case, where)}"
        case.curve(heading, "samples", curves, f"Accuracy in % on the rest.{frozen.seeds}")
    _single_images(case, along, online.seeds)
    case.say(_answer(after, along))
    case.note(*frozen.failures, *online.failures)
    if CLEAN not in after:
        case.note(f"{case.title}: there are no clean images to see what NEO costs on them.")


def _places(found: Results | None) -> Places:
    """Curves that have both rules, over the number of samples."""
    if found is None:
        return {}
    curves = {
        where: found.curves(lambda run: run.samples, names=NAMES, domain=domain)
        for where, domain in ((SHIFTED, None), (CLEAN, CLEAN))
    }
    return {where: each for where, each in curves.items() if all(gains_along(each.get(n, [])) for n in NAMES.values())}


def _words(case: Case, where: str) -> str:
    return "clean images" if where == CLEAN else f"mean over {some(len(case.setting.domains), 'shifted domain')}"


def _draw(case: Case, after: Places) -> None:
    panels = [
        Panel(
            gain_lines({name: curves[name] for name in NAMES.values()}),
            "samples adapted on",
            title=_words(case, where),
            ticks=[point.x for point in curves[PLAIN]],
            zero=True,
        )
        for where, curves in after.items()
    ]
    panels[0] = panels[0]._replace(y="gain over none on the rest (points)")
    case.figure(
        "few samples",
        "gain by the number of samples, with and without shrinkage",
        line_chart(*panels),
        [{"where": where, **row} for where, curves in after.items() for row in curve_rows("samples", curves)],
        "Band: 95 % interval over images and seeds. Below zero, adapting costs accuracy.",
    )


def _single_images(case: Case, along: Places, seeds: str) -> None:
    """Single images, predicted and adapted to one after the other."""
    tables = {where: curve_table("", "samples", curves, "") for where, curves in along.items()}
    shown = {_words(case, where): [text for text, _ in table.grid.rows[0][1]] for where, table in tables.items()}
    case.table(
        "accuracy online, one image at a time",
        grid("images", tables[SHIFTED].grid.columns, shown),
        [{"where": where, **row} for where, table in tables.items() for row in table.data],
        f"Accuracy in % on {along[SHIFTED][PLAIN][0].x:g} images while adapting to them, batch size 1.{seeds}",
    )


def _answer(after: Places, along: Places) -> str:
    said = []
    for where, curves in after.items():
        plain, shrunk = (gains_along(curves[name]) for name in (PLAIN, SHRUNK))
        number = min(plain, key=lambda number: plain[number].mean)
        said.append(
            f"{'on clean images' if where == CLEAN else 'under shift'} NEO is at its worst after "
            f"{some(number, 'sample')} with {doubted(plain[number])}, shrunk {points(shrunk[number])}"
        )
    single = [along[SHIFTED][name][0].gain for name in (PLAIN, SHRUNK)]
    return f"{'; '.join(said)}; with single images online it gains {doubted(single[0])}, shrunk {doubted(single[1])}"

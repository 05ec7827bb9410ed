"""The demonstration: a real shift, cameras that see one digit each, and 15 corruptions; plain, with NEO-Stream and NEO.

Each part is a plan, measured and compared as any other. Methods are reset before each domain and each camera.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from neotta.adapters.registry import methods
from neotta.data.base import DatasetView, DataSource, Image, ImageDataset
from neotta.data.corruptions import CORRUPTIONS
from neotta.data.drawing import Indices, take
from neotta.data.opening import open_data
from neotta.errors import OptionError
from neotta.evaluate.answers import PredictionStats
from neotta.evaluate.compare import AVERAGE, compare, difference_in, mean_in
from neotta.evaluate.domains import CLEAN
from neotta.evaluate.measure import Measurement, measure
from neotta.evaluate.metrics import CANNOT_TELL
from neotta.evaluate.plan import Plan
from neotta.evaluate.sweep import Watcher
from neotta.models.packaged import BUNDLED, read_package
from neotta.report.charts import Ranking, dot_chart, ranking_chart
from neotta.report.comparison_page import comparison_page
from neotta.report.figures import Figure, display
from neotta.report.formats import Section, Sheet, comparison_sheet
from neotta.report.grids import Entry, Grid
from neotta.report.html import data_uri, render
from neotta.report.over_time import batches_figure, over_time

METHODS = ("none", "neo-stream", "neo")
REAL: dict[str, Any] = {"model": "mnist", "data": "digits-all", "seeds": [0]}
REAL_SHIFT = (
    "A small vision transformer, trained on MNIST, names handwritten digits of another collection: other writers, "
    "another scanner, 8 x 8 instead of 28 x 28 pixels. Nobody made up this shift."
)
FRAMES = 8
"""Number of frames that a camera's model sees at a time."""
EXAMPLES = 16
"""Largest number of images of each kind on the page."""
WHICH = (
    "One line does it: neotta.adapt(model), which is NEO-Stream. Where classes are surely mixed, "
    'neotta.adapt(model, "neo") gains more.'
)
"""Which rule to take when."""


class _Rows(DatasetView):
    """Some samples of a dataset, in an order of their own."""

    def __init__(self, dataset: ImageDataset, domain: str, rows: Indices) -> None:
        super().__init__(dataset, domain)
        self.rows, self.ids = rows, [dataset.ids[row] for row in rows]
        self.labels = None if dataset.labels is None else dataset.labels[rows]

    def read(self, index: int) -> Image:
        return self.dataset.read(int(self.rows[index]))

    def digest(self, index: int) -> str:
        return self.dataset.digest(int(self.rows[index]))

    stamp = digest


class Part:
    """What came of one plan: its comparison, and the answers of its runs by domain and method."""

    def __init__(self, measured: Measurement) -> None:
        self.bench, self.runs = measured.bench, measured.results.frame()
        self.table = compare(self.runs)
        records = [record for record in measured.results.records if record.measured]
        self._results = {
            (record.domain, record.method): measured.summary.results[record.key].stats for record in records
        }
        self.domains = [record.domain for record in records if record.method == "none"]
        self.order = self.bench.orders(measured.runs[0])[-1]

    def row(self, method: str, domain: str = AVERAGE) -> Any:
        """A method's row of the comparison; a single domain is its own average."""
        mine = self.table[self.table["method"] == method]
        return next((mine[mine["domain"] == domain] if len(mine) > 1 else mine).itertuples())

    def percent(self, method: str, domain: str = AVERAGE) -> str:
        return f"{self.row(method, domain).mean:.1f} %"

    def answers(self, method: str, domain: str = "") -> PredictionStats:
        return self._results[domain or self.domains[0], method]

    def changed(self, method: str, domain: str = "", *, fixed: bool) -> list[int]:
        """The rows that a method fixed (right, where the plain model is wrong), or broke."""
        before, after = (
            each.predicted == each.labels for each in (self.answers("none", domain), self.answers(method, domain))
        )
        return (~before & after if fixed else before & ~after).nonzero().ravel().tolist()

    def image(self, row: int, domain: str = "") -> Image:
        return self.bench.data.dataset(domain or self.domains[0]).read(int(self.order.index[row]))


@dataclass(frozen=True)
class Demo:
    """A real shift, one digit for each camera, and clean and corrupted images, the same in every domain."""

    real: Part
    cameras: Part
    corrupted: Part
    source_accuracy: float  # of the model of MNIST on its own test images, in percent


def run(samples: int | None = None, watcher: Watcher | None = None) -> Demo:
    """Measure the bundled models on `samples` images of each kind, or all."""
    digits = open_data("digits").dataset()
    if samples is not None and not 1 <= samples <= len(digits):
        raise OptionError(f"samples is {samples}: there are 1 to {len(digits)} test images")
    rows = np.random.default_rng(0).permutation(len(digits))[:samples]
    labels = np.zeros(len(rows)) if digits.labels is None else digits.labels[rows]
    views = {f"digit {int(label)}": rows[labels == label] for label in np.unique(labels)}
    real = _measure({**REAL, "samples": [samples or -1]}, watcher)
    cameras = _measure({"order": "stored", "batch_sizes": [FRAMES]}, watcher, _source(digits, views))
    damage = {"order": "stored", "corruptions": [CLEAN, *CORRUPTIONS]}
    corrupted = _measure(damage, watcher, _source(digits, {"test": rows}))
    return Demo(Part(real), Part(cameras), Part(corrupted), 100 * (read_package(BUNDLED["mnist"]).accuracy or np.nan))


def _source(digits: ImageDataset, parts: dict[str, Indices]) -> DataSource:
    return DataSource("digits", None, tuple(parts), lambda name: _Rows(digits, name, parts[name]), digits.classes)


def _measure(entries: dict[str, Any], watcher: Watcher | None, data: DataSource | None = None) -> Measurement:
    plan = Plan.make({"methods": METHODS, "samples": [-1], "seeds": [0], **entries})
    return measure(plan, data=data, predictions=True, workers=0, progress=watcher)


# ---- in words and numbers


def headline(demo: Demo) -> str:
    real, (fixed, broken) = demo.real, (len(demo.real.changed("neo-stream", fixed=kind)) for kind in (True, False))
    return (
        f"A model trained on MNIST is right on {demo.source_accuracy:.1f} % of MNIST's digits, and on "
        f"{real.percent('none')} of {len(real.order):,} digits by other people. After neotta.adapt(model) it is right "
        f"on {real.percent('neo-stream')}: {fixed} answers fixed, {broken} broken, without labels or training. These "
        f'digits are mixed, and there neotta.adapt(model, "neo") reaches {real.percent("neo")}.'
    )


def one_digit(demo: Demo) -> str:
    plain, stream, neo = (demo.cameras.percent(method) for method in METHODS)
    return (
        f"A camera that sees only one digit, clean images: the plain model is right on {plain} of the frames, "
        f"NEO-Stream on {stream}, NEO on {neo}."
    )


def summary(demo: Demo) -> str:
    """Say for each rule how many answers it fixed and broke over all corruptions, and where that is not chance."""
    table, domains = demo.corrupted.table, demo.corrupted.domains[1:]
    said = []
    for method in METHODS[1:]:
        fixed, broken = (
            sum(len(demo.corrupted.changed(method, name, fixed=kind)) for name in domains) for kind in (True, False)
        )
        verdicts = list(table["verdict"][(table["method"] == method) & table["domain"].isin(domains)])
        said.append(
            f"{methods()[method].title} fixed {fixed} answers and broke {broken}: it helps under "
            f"{verdicts.count('helps')} of {len(domains)} corruptions and hurts under {verdicts.count('hurts')}; for "
            f"{verdicts.count(CANNOT_TELL)} the difference may be chance."
        )
    return " ".join(said)


def sheet(demo: Demo) -> Sheet:
    """All accuracies in one table; what differs from the plain model beyond chance has a mark."""
    parts = [("A real shift", demo.real, AVERAGE)]
    parts += [(title(name), demo.corrupted, name) for name in demo.corrupted.domains]
    parts += [(f"Mean of {len(CORRUPTIONS)}", demo.corrupted, AVERAGE), ("One digit, clean", demo.cameras, AVERAGE)]
    rows = [(name, tuple(_entry(part.row(method, domain)) for method in METHODS)) for name, part, domain in parts]
    numbers = Grid("images", ("Plain", *map(display, METHODS[1:])), tuple(rows))
    notes = ["* and colours: the difference to the plain model is beyond chance.", summary(demo)]
    return Sheet("accuracy in %", "", [Section("", [("", numbers)])], notes, [])


def _entry(row: Any) -> Entry:
    sure = row.verdict in ("helps", "hurts")
    return Entry(f"{row.mean:.1f}{'*' if sure else ''}", row.verdict if sure else "")


def title(name: str) -> str:
    """Write the name of a domain as one reads it: `jpeg_compression/5` is "JPEG compression"."""
    words = name.partition("/")[0].replace("_", " ").replace("jpeg", "JPEG")
    return words[0].upper() + words[1:]


# ---- the page


def demo_page(demo: Demo, seconds: float) -> str:
    from markupsafe import Markup

    return render(
        "demo.html",
        demo=demo,
        headline=headline(demo),
        one_digit=one_digit(demo),
        which=WHICH,
        sheet=sheet(demo),
        figures={figure.name: Markup(figure.svg()) for figure in _figures(demo)},
        changed=[(what, *_examples(demo.real, fixed=what == "Fixed")) for what in ("Fixed", "Broken")],
        strips=_strips(demo.corrupted),
        batch_size=demo.real.table["batch_size"].iloc[0],
        frames=FRAMES,
        state=demo.corrupted.bench.head.in_features,
        samples=len(demo.corrupted.order),
        seconds=seconds,
    )


def _figures(demo: Demo) -> list[Figure]:
    real = {method: mean_in(demo.real.row(method)) for method in METHODS}
    names = [name for name in demo.corrupted.domains if name != CLEAN]
    gains = {
        title(name): {method: difference_in(demo.corrupted.row(method, name)) for method in METHODS[1:]}
        for name in (CLEAN, *names)
    }
    height = 0.9 + 0.32 * len(gains)
    return [
        Figure("real", "", ranking_chart(Ranking(real, "accuracy in %")), [], size=(5.5, 1.6)),
        batches_figure(over_time(demo.cameras.runs), "cameras"),
        Figure("corrupted", "", dot_chart(gains, "change of accuracy in points", zero=True), [], size=(5.5, height)),
    ]


def _examples(real: Part, *, fixed: bool) -> tuple[int, list[dict[str, Any]]]:
    """How many answers the default fixed or broke, and the first of them: image, truth, both answers."""
    rows, plain, mine = real.changed("neo-stream", fixed=fixed), real.answers("none"), real.answers("neo-stream")
    columns = {"truth": plain.labels, "plain": plain.predicted, "adapted": mine.predicted}
    return len(rows), [
        {"image": data_uri(real.image(row)), **{name: int(column[row]) for name, column in columns.items()}}
        for row in rows[:EXAMPLES]
    ]


def _strips(part: Part) -> list[tuple[str, str]]:
    """One image of each class, from every domain."""
    rows = np.unique(part.answers("none").labels, return_index=True)[1]
    strips = {name: np.concatenate([part.image(row, name) for row in rows], axis=1) for name in part.domains}
    return [(title(name), data_uri(strip)) for name, strip in strips.items()]


def real_page(samples: int | None = None, watcher: Watcher | None = None) -> tuple[Sheet, str]:
    """Every method that works on the real shift, compared as any results are: the tables and the page."""
    names = [name for name in methods() if name != "bn"]  # which is NEO-BN's control
    count = take(len(open_data(REAL["data"]).dataset()), samples or -1, "images")
    measured = _measure({**REAL, "methods": names, "samples": [count]}, watcher)
    table, remarks = compare(measured.results.frame()), [REAL_SHIFT, *measured.results.remarks()]
    return comparison_sheet(table, remarks), comparison_page(table, remarks)

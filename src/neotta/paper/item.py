"""The base of all items: a question, the runs that answer it, and what is drawn for each subject.

The file of an item declares its question, the paper's claim and published values, plans its runs, and shows what was
measured on one subject. Going through the subjects, reading records and collecting what is found is done here.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import neotta.paper.items
from neotta.adapters.registry import methods
from neotta.errors import NeottaError, OptionError, suggestion
from neotta.evaluate.metrics import Interval
from neotta.evaluate.plan import Plan
from neotta.evaluate.provenance import about_older, older
from neotta.evaluate.records import Record
from neotta.paper import published
from neotta.paper.claims import Holds, all_hold, file_name, listed
from neotta.paper.evidence import Evidence
from neotta.paper.measured import Gaps, Measured
from neotta.paper.study import Setting, method_of, shown_name
from neotta.paper.tables import Curves, Rows, beside, curve_table, each_beside, gain_lines, mean_lines, plain
from neotta.report.charts import Panel, Ranking, line_chart, ranking_chart
from neotta.report.figures import Draw, Figure
from neotta.report.grids import Grid, Table

T = TypeVar("T")
ORDER = (
    "methods tradeoff dimensions alignment corruptions gains calibration full samples classes one-class continual "
    "cross-domain resources cnn batch-size alpha collapse propositions few-samples continual-start stacks "
    "reliability real-streams natural-shifts judged"
)
"""The items in the order of the report; others follow."""
HOLDS = {
    "yes": "holds here",
    "partly": "holds in part",
    "no": "does not hold here",
    "unclear": "cannot be told here: what decides it may be chance",
}


class Skip(NeottaError):
    """A subject cannot answer the question; the reason, if one is given, becomes a note."""


@dataclass(frozen=True)
class Item:
    """One table or figure of the paper, or one question beyond it.

    Attributes:
        name: One word or two, such as `"corruptions"`: unique among all items.
        question: What it asks.
        title: A heading.
        show: Adds tables, figures and an answer for one subject. It returns what `conclude` needs of it, and raises a
            `NeottaError` if the subject cannot answer the question.
        place: Where the paper has it; empty for questions beyond the paper.
        claim: What the paper says, in our words; empty for questions beyond the paper.
        rivals: The methods that the claim compares with: without all of them on the same samples it is not judged.
        runs: The runs it needs of a subject; records and embeddings are shared with all other items.
        costs: The methods whose time and memory it needs.
        domains: How many shifted domains a subject must have.
        conclude: Adds what concerns all subjects together, from what `show` returned for each.
        once: Ask once for all subjects, with the first of them.
        nothing: The answer if nothing could be measured.
        remarks: Notes that are true of every subject.
    """

    name: str
    question: str
    title: str
    show: Callable[[Report], Any]
    place: str = ""
    claim: str = ""
    rivals: tuple[str, ...] = ()
    runs: Callable[[Setting], list[Plan]] = lambda setting: []
    costs: Callable[[Setting], list[str]] = lambda setting: []
    domains: int = 0
    conclude: Callable[[Report, dict[str, Any]], None] = lambda report, shown: None
    once: bool = False
    nothing: str = "Nothing could be measured."
    remarks: tuple[str, ...] = ()

    def plans(self, setting: Setting) -> list[Plan]:
        """The runs it needs of a subject; none if the subject has too few domains."""
        return self.runs(setting) if len(setting.domains) >= self.domains else []

    def find(self, evidence: Evidence) -> Report:
        report, shown = Report(self, evidence, evidence.settings[0]), {}
        for setting in evidence.settings[: 1 if self.once else None]:
            report.setting = setting
            try:
                if len(setting.domains) < self.domains:
                    raise Skip("has one domain, and this needs several.")
                shown[setting.title] = self.show(report)
                report.note(*report.caveats)
            except NeottaError as error:
                report.notes += [f"{setting.title}: {error}"] if str(error) else []
        self.conclude(report, shown)
        report.notes = list(dict.fromkeys([*report.notes, *(self.remarks if report.said else ())]))
        return report


def item(**declared: Any) -> Callable[[Callable[[Report], Any]], Item]:
    """Make an item of a function: its name is the item's, its docstring the question; the rest is declared here."""
    return lambda show: Item(show.__name__.replace("_", "-"), show.__doc__ or "", show=show, **declared)


def need(measured: T | None) -> T:
    """What was measured; without anything, the subject is passed over."""
    if not measured:
        raise Skip
    return measured


@dataclass
class Report:
    """What an item says of a study: filled by the item's function, subject by subject."""

    item: Item
    evidence: Evidence
    setting: Setting  # the subject that is looked at
    parts: list[Table | Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)  # the answers, one sentence for each subject
    verdicts: list[tuple[str, Holds]] = field(default_factory=list)  # subjects, and whether the claim holds on them
    concluded: Holds | None = None  # whether it holds of all subjects, where that is more than of each
    missing: list[str] = field(default_factory=list)  # rivals not measured on the same samples
    command: str = ""  # repeats it

    # ---- what is concluded

    @property
    def title(self) -> str:
        return self.setting.title

    @property
    def answer(self) -> str:
        return " ".join(self.said) or self.item.nothing

    @property
    def holds(self) -> Holds | None:
        """Whether the paper's claim holds here; None if the paper makes no claim."""
        if not self.item.claim:
            return None
        return self._sure(self.concluded or self._joined([verdict for _, verdict in self.verdicts]))

    def holds_on(self, subject: str) -> Holds | None:
        """Whether the paper's claim holds on one subject; None if it was not asked there."""
        mine = [verdict for name, verdict in self.verdicts if name == subject]
        return self._sure(self._joined(mine)) if mine else None

    def _joined(self, verdicts: list[Holds]) -> Holds:
        judged = [verdict for verdict in verdicts if verdict != "not judged"]
        return "not judged" if verdicts and not judged else all_hold(judged)

    def _sure(self, verdict: Holds) -> Holds:
        return "unclear" if verdict == "partly" and self._seeds < 2 else verdict  # another seed may tell otherwise

    @property
    def verdict(self) -> str:
        """Whether the paper's claim holds, in words; empty where it claims nothing."""
        if self.holds == "not judged":
            return f"is not judged: {listed(self.missing)} {'is' if len(self.missing) == 1 else 'are'} missing"
        return HOLDS[self.holds] if self.holds else ""

    @property
    def _seeds(self) -> int:
        plans = [plan for setting in self.evidence.settings for plan in self.item.plans(setting)]
        return max((len(plan.seeds) for plan in plans), default=len(self.evidence.study.seeds))

    # ---- what was measured

    @property
    def plans(self) -> list[Plan]:
        return self.item.plans(self.setting)

    @property
    def records(self) -> list[Record]:
        return self.evidence.records(*self.plans)

    def results(self, metric: str = "top1") -> Measured:
        """The methods compared with no adaptation; which runs failed, and why, becomes notes."""
        results = need(Measured.of(self.records, metric))
        self.note(*results.failures)
        return results

    def against(self, method: str) -> Gaps:
        """How all other methods differ from this one on the same samples, over the shifted domains."""
        results = Measured.of(self.records, baseline=method)
        return results.gaps if results else {}

    @property
    def caveats(self) -> list[str]:
        """Notes on methods left out of a comparison of all that work here, and on records that other code made."""
        setting, line = self.setting, about_older(older(self.records), len(self.records))
        compared = {*self.item.costs(setting), *(method.method for plan in self.plans for method in plan.methods)}
        left_out = setting.left_out if compared.issuperset(setting.names) else {}
        notes = [f"{shown_name(method)} was left out: {reason}" for method, reason in left_out.items()]
        return [*notes, f"{self.title}, {line}."] if line else notes

    # ---- what is shown

    def add(self, *parts: Table | Figure) -> None:
        self.parts += parts

    def say(self, words: str, holds: Holds | None = None, measured: Iterable[str] = ()) -> None:
        """Answer for this subject: words that follow "On <subject>, ".

        `measured` are the labels of the methods on the same samples: where one of the claim's rivals is not among them,
        the claim is not judged.
        """
        self.say_all(f"On {self.title}, {words}.", holds, measured)

    def say_all(self, sentence: str, holds: Holds | None = None, measured: Iterable[str] = ()) -> None:
        """Answer in a whole sentence; see `say`."""
        names = {method_of(label) for label in measured}
        missing = [methods()[rival].title for rival in self.item.rivals if rival not in names]
        self.said.append(sentence)
        if missing and holds != "no":  # what is refuted already needs no further rival
            holds = holds and "not judged"
        self.verdicts += [] if holds is None else [(self.title, holds)]
        if holds == "not judged":
            self.missing += [title for title in missing if title not in self.missing]
            self.note(f"{self.title}: the claim is not judged without {listed(missing)}.")

    def note(self, *notes: str) -> None:
        self.notes += notes

    def comparison(self, results: Measured, *, heading: str = "", gaps: bool = True) -> None:
        self.add(*results.shown(f"{self.title}: {heading}" if heading else self.title, gaps=gaps))
        self.note(*results.notes(verdicts=gaps))

    def table(self, heading: str, shown: Grid, data: Rows, caption: str) -> None:
        self.add(Table(f"{self.title}: {heading}", shown, data, caption))

    def curve(self, heading: str, corner: str, curves: Curves, caption: str, **how: Any) -> None:
        """Add a table of means and gains along something; `how` is what `curve_table` takes besides."""
        self.add(curve_table(f"{self.title}: {heading}", corner, curves, caption, **how))

    def beside(self, heading: str, printed: Mapping[str, float], measured: Mapping[str, Interval], **how: Any) -> None:
        """Add a table of published and measured numbers; `how` is what `tables.beside` takes."""
        self.add(beside(f"{self.title}: {heading}, published and measured", printed, measured, **how))

    def published_values(self, printed: tuple[str, str], results: Measured, what: str) -> None:
        """Add what each method gains over no adaptation, in the paper (for the model and data `printed`) and here.

        Where model and data are the same, the accuracies under each corruption are set side by side, too; where they
        are not, `what` says what the published values are of.
        """
        same = published.match(self.setting.subject) == printed
        what = "the same model and data" if same else what
        table = published.accuracies()[printed]
        if same:
            caption = (
                "Accuracy in %: published / measured (difference), for the same model and data. Measured: "
                f"{results.extent()}. The paper's intervals are in the CSV file."
            )
            heading = f"{self.title}: accuracy, published and measured"
            measured = results.by_corruption
            if table.keys() - {published.AVERAGE} - measured.keys():  # an average over others would not compare
                measured.pop(published.AVERAGE, None)
            self.add(each_beside(heading, table, measured, caption))
        values = table.get(published.AVERAGE) or table["all"]
        gains = {name: value.mean - values["none"].mean for name, value in values.items() if name != "none"}
        caption = f"Points of accuracy, mean over the domains. Published: {what}."
        self.beside("gain over no adaptation", gains, results.gaps, sign="+", caption=caption)

    def figure(self, name: str, heading: str, draw: Draw, data: Rows, caption: str, height: float = 3.4) -> None:
        """Add a figure; `name` and the subject make its file name."""
        title = f"{self.title}: {heading}"
        self.add(Figure(file_name(name, self.title), title, draw, data, caption, (7.0, height)))

    def lines(
        self,
        name: str,
        heading: str,
        panels: Mapping[str, Curves],
        data: Rows,
        caption: str,
        *,
        x: str,
        y: str = "",
        names: Mapping[float, str] | None = None,
    ) -> None:
        """Add a figure of accuracies over x, with one panel per title; with a label `y`, of gains."""
        draw, label = (gain_lines, y) if y else (mean_lines, "accuracy (%)")
        shown: list[Panel] = []
        for title, curves in panels.items():
            ticks = sorted({point.x for points in curves.values() for point in points})
            shown.append(Panel(draw(curves), x, "" if shown else label, title, ticks, names or {}, zero=bool(y)))
        self.figure(name, heading, line_chart(*shown), data, caption)

    def ranking(
        self, name: str, heading: str, values: Mapping[str, Interval], label: str, caption: str, **how: Any
    ) -> None:
        """Add a figure of one bar per method, in the order given; `how` is what `Ranking` takes."""
        draw = ranking_chart(Ranking(values, label, **how))
        data: Rows = [{"method": method, **plain(each)} for method, each in values.items()]
        self.figure(name, heading, draw, data, caption, height=0.8 + 0.28 * len(values))


@functools.cache
def items() -> dict[str, Item]:
    """Every item by its name, from the files in `items`."""
    files = pkgutil.iter_modules(neotta.paper.items.__path__, f"{neotta.paper.items.__name__}.")
    modules = [importlib.import_module(name) for _, name, _ in files]
    known = {item.name: item for module in modules for item in vars(module).values() if isinstance(item, Item)}
    return {name: known[name] for name in sorted(known, key=[*ORDER.split(), *known].index)}


def chosen(names: list[str]) -> list[Item]:
    """The items of these names; `all` for all of them."""
    known = items()
    for name in names:
        if name not in (*known, "all"):
            raise OptionError(f"the paper has no item {name!r}: {suggestion(name, known)}")
    return list(known.values()) if "all" in names else [known[name] for name in dict.fromkeys(names)]

"""The base of all items: a question, the runs that answer it, and what is drawn for each subject.

The file of an item declares its question, the paper's claim and published values, plans its runs, and shows what was
measured on one subject. Going through the subjects, reading records and collecting what is found is done here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from neotta.errors import NeottaError
from neotta.evaluate.metrics import Interval
from neotta.evaluate.plan import Plan
from neotta.evaluate.provenance import about_older, older
from neotta.evaluate.records import Record
from neotta.paper import published
from neotta.paper.curves import Curves, curve_table
from neotta.paper.evidence import Evidence
from neotta.paper.finding import Finding, Holds
from neotta.paper.results import Gaps, Results
from neotta.paper.study import Setting
from neotta.paper.tables import Rows, beside, each_beside, plain
from neotta.paper.words import file_name
from neotta.report.charts import Ranking, ranking_chart
from neotta.report.figures import Draw, Figure
from neotta.report.grids import Grid, Table


class Skip(NeottaError):
    """A subject cannot answer the question; the reason, if one is given, becomes a note."""


@dataclass(frozen=True)
class Item:
    """One table or figure of the paper, or one question beyond it.

    Attributes:
        order: Its place in the report.
        name: One word or two, such as `"corruptions"`: unique among all items.
        title: A heading.
        question: What it asks.
        show: Adds tables, figures and an answer for one subject. It returns what `conclude` needs of it, and raises a
            `NeottaError` if the subject cannot answer the question.
        place: Where the paper has it; empty for questions beyond the paper.
        claim: What the paper says, in our words; empty for questions beyond the paper.
        runs: The runs it needs of a subject; records and embeddings are shared with all other items.
        costs: The methods whose time and memory it needs.
        domains: How many shifted domains a subject must have.
        conclude: Adds what concerns all subjects together, from what `show` returned for each.
        once: Ask once for all subjects, with the first of them.
        nothing: The answer if nothing could be measured.
        remarks: Notes that are true of every subject.
    """

    order: int
    name: str
    title: str
    question: str
    show: Callable[[Case], Any]
    place: str = ""
    claim: str = ""
    runs: Callable[[Setting], list[Plan]] = lambda setting: []
    costs: Callable[[Setting], list[str]] = lambda setting: []
    domains: int = 0
    conclude: Callable[[Finding, dict[str, Any]], None] = lambda finding, shown: None
    once: bool = False
    nothing: str = "Nothing could be measured."
    remarks: tuple[str, ...] = ()

    def plans(self, setting: Setting) -> list[Plan]:
        """The runs it needs of a subject; none if the subject has too few domains."""
        return self.runs(setting) if len(setting.domains) >= self.domains else []

    def find(self, evidence: Evidence) -> Finding:
        """Answer the question from what was measured."""
        finding, shown = Finding(claimed=bool(self.claim), nothing=self.nothing, seeds=self._seeds(evidence)), {}
        for setting in evidence.settings[: 1 if self.once else None]:
            try:
                if len(setting.domains) < self.domains:
                    raise Skip("has one domain, and this needs several.")
                case = Case(self, evidence, setting, finding)
                shown[setting.title] = self.show(case)
                case.note(*case.left_out, *case.older)
            except NeottaError as error:
                finding.notes += [f"{setting.title}: {error}"] if str(error) else []
        self.conclude(finding, shown)
        finding.notes = list(dict.fromkeys([*finding.notes, *(self.remarks if finding.said else ())]))
        return finding

    def _seeds(self, evidence: Evidence) -> int:
        """Number of seeds of the runs it needs; of the study, if it needs none."""
        plans = [plan for setting in evidence.settings for plan in self.plans(setting)]
        return max((len(plan.seeds) for plan in plans), default=len(evidence.study.seeds))


def item(**declared: Any) -> Callable[[Callable[[Case], Any]], Item]:
    """Make an item of the function that shows what was found; the arguments are the attributes of `Item`."""
    return lambda show: Item(show=show, **declared)


@dataclass(frozen=True)
class Case:
    """One subject before an item: what was measured on it, and where parts, answers and notes go.

    Attributes:
        item: Who asks.
        evidence: All that was measured.
        setting: The subject.
        finding: What is found.
    """

    item: Item
    evidence: Evidence
    setting: Setting
    finding: Finding

    @property
    def title(self) -> str:
        """The name of the subject."""
        return self.setting.title

    # ---- what was measured

    @functools.cached_property
    def plans(self) -> list[Plan]:
        """The item's plans for this subject."""
        return self.item.plans(self.setting)

    @functools.cached_property
    def records(self) -> list[Record]:
        """The records of these plans."""
        return self.evidence.records(*self.plans)

    def results(self, metric: str = "top1") -> Results:
        """The methods compared with no adaptation.

        Raises:
            Skip: Nothing was measured.
        """
        found = Results.of(self.records, metric)
        if found is None:
            raise Skip
        return found

    def against(self, method: str, metric: str = "top1") -> Gaps:
        """How all other methods differ from this one on the same samples, over the shifted domains."""
        found = Results.of(self.records, metric, method)
        return found.gaps if found else {}

    @property
    def left_out(self) -> list[str]:
        """Notes on the methods that do not work on this model and data, if the item compares all that do."""
        asked = {method.method for plan in self.plans for method in plan.methods} | {*self.item.costs(self.setting)}
        if not asked.issuperset(self.setting.names):
            return []
        return [f"{method} was left out: {reason}" for method, reason in self.setting.left_out.items()]

    @property
    def older(self) -> list[str]:
        """A note on records that other code made, if there are some."""
        line = about_older(older(self.records), len(self.records))
        return [f"{self.title}, {line}."] if line else []

    # ---- what is shown

    def add(self, *parts: Table | Figure) -> None:
        """Add tables and figures."""
        self.finding.parts += parts

    def say(self, words: str, holds: Holds | None = None) -> None:
        """Answer for this subject: words that follow "On <subject>, "."""
        self.finding.say(f"On {self.title}, {words}.", holds)

    def note(self, *notes: str) -> None:
        """Add what else a reader has to know."""
        self.finding.notes += notes

    def comparison(self, found: Results, *, heading: str = "", gaps: bool = True) -> None:
        """Add the tables of a comparison, and its notes."""
        self.add(*found.tables(f"{self.title}: {heading}" if heading else self.title, gaps=gaps))
        self.note(*found.notes(verdicts=gaps))

    def table(self, heading: str, shown: Grid, data: Rows, caption: str) -> None:
        """Add a table of text."""
        self.add(Table(f"{self.title}: {heading}", shown, data, caption))

    def curve(self, heading: str, corner: str, curves: Curves, caption: str, **how: Any) -> None:
        """Add a table of means and gains along something; `how` is what `curve_table` takes besides."""
        self.add(curve_table(f"{self.title}: {heading}", corner, curves, caption, **how))

    def beside(self, heading: str, printed: Mapping[str, float], measured: Mapping[str, Interval], **how: Any) -> None:
        """Add a table of published and measured numbers; `how` is what `tables.beside` takes."""
        self.add(beside(f"{self.title}: {heading}, published and measured", printed, measured, **how))

    def published_values(self, printed: tuple[str, str], found: Results, what: str) -> None:
        """Add what each method gains over no adaptation, in the paper and here.

        Where model and data are those of the published values, their accuracies are set side by side, too, for each
        corruption.

        Args:
            printed: The model and data of the published values.
            found: What was measured.
            what: What the published values are of, if of another model or other data.
        """
        subject = self.setting.subject
        same = published.match(subject.model, subject.data, subject.model_options, subject.severity) == printed
        what = "the same model and data" if same else what
        table = published.accuracies()[printed]
        if same:
            caption = (
                "Accuracy in %: published / measured (difference), for the same model and data. Measured: "
                f"{found.extent}. The paper's intervals are in the CSV file."
            )
            heading = f"{self.title}: accuracy, published and measured"
            measured = found.by_corruption
            if table.keys() - {published.AVERAGE} - measured.keys():  # an average over others would not compare
                measured.pop(published.AVERAGE, None)
            self.add(each_beside(heading, table, measured, caption=caption))
        values = table.get(published.AVERAGE) or table["all"]
        gains = {name: value.mean - values["none"].mean for name, value in values.items() if name != "none"}
        caption = f"Points of accuracy, mean over the domains. Published: {what}."
        self.beside("gain over no adaptation", gains, found.gains, sign="+", caption=caption)

    def figure(self, name: str, heading: str, draw: Draw, data: Rows, caption: str, height: float = 3.4) -> None:
        """Add a figure; `name` and the subject make its file name."""
        title = f"{self.title}: {heading}"
        self.add(Figure(file_name(name, self.title), title, draw, data, caption, (7.0, height)))

    def ranking(
        self, name: str, heading: str, found: Mapping[str, Interval], label: str, caption: str, **how: Any
    ) -> None:
        """Add a figure of one bar per method, in the order given; `how` is what `Ranking` takes."""
        draw = ranking_chart(Ranking({method: each[:2] for method, each in found.items()}, label, **how))
        data: Rows = [{"method": method, **plain(each)} for method, each in found.items()]
        self.figure(name, heading, draw, data, caption, height=0.8 + 0.28 * len(found))

"""The report on the paper: one HTML page, and tables and figures as files."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neotta._files import atomic
from neotta._words import counted
from neotta.evaluate.machine import surroundings
from neotta.paper.evidence import Evidence
from neotta.paper.finding import Finding
from neotta.paper.item import Item
from neotta.paper.preprocessing import in_words
from neotta.paper.words import file_name
from neotta.report.figures import Figure
from neotta.report.formats import latex_table, markdown_table
from neotta.report.grids import Table
from neotta.report.html import render

FORMATS = ("html", "md", "latex", "png", "csv")
HOLDS = {"yes": "holds here", "partly": "holds in part", "no": "does not hold here", "unclear": "is unclear here"}


@dataclass(frozen=True)
class Section:
    """An item, what it found, and the command that repeats it."""

    item: Item
    finding: Finding
    command: str

    @property
    def verdict(self) -> str:
        """Whether the paper's claim holds, in words; empty where it claims nothing."""
        return HOLDS[self.finding.holds] if self.finding.holds else ""


def paper_page(sections: Sequence[Section], about: Sequence[tuple[str, str]], problems: dict[str, str]) -> str:
    """The report as one HTML page that needs nothing else.

    Args:
        sections: Its items.
        about: What was measured on what, in words, by heading: see `facts`.
        problems: What could not be carried out, and why.
    """
    shown = [(section, [_part(part) for part in section.finding.parts]) for section in sections]
    return render("paper.html", templates="paper/templates", sections=shown, facts=about, problems=problems)


def facts(evidence: Evidence, seconds: float) -> list[tuple[str, str]]:
    """What was measured on what, and how long it took, for the top of the page."""
    about, study = surroundings(), evidence.study
    machine, found = about["machine"], []
    for setting in evidence.settings:
        severity = f" at severity {setting.subject.severity}" if setting.subject.corruptions else ""
        what = f"{counted(len(setting.domains), 'domain')}{severity}, {counted(setting.images, 'image')} each"
        bench = evidence.bench(setting)
        presets = {method: bench.preset(method) for method in setting.names}
        own = "".join(f"; {method} with the preset {name}" for method, name in presets.items() if name != "paper")
        found.append((setting.title, f"{what}, {setting.classes} classes; {in_words(bench.data.preprocess)}{own}"))
    seeds = counted(len(study.seeds), "seed")
    found.append(("Runs", f"{study.samples} samples of each domain, {seeds}, batches of {study.batch_size}"))
    slow = next((setting for setting in evidence.settings if setting.reduced), None)
    if slow is not None:
        less = f"{counted(slow.slow_samples, 'sample')}, {counted(len(slow.slow_seeds), 'seed')}"
        found.append(("Reduced", f"methods that need images: {less}"))
    where = machine["gpu"] or f"{machine['processor']}, {counted(machine['cores'], 'core')}"
    found.append(
        ("Machine", f"{where}; {machine['system']}, Python {machine['python']}, torch {about['packages']['torch']}")
    )
    took = f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
    return [*found, ("Made", f"{about['time'][:10]}; the last command took {took}")]


def _part(part: Table | Figure) -> dict[str, Any]:
    from markupsafe import Markup

    if isinstance(part, Table):
        texts = {"markdown": markdown_table(part.grid), "latex": _latex_table(part)}
        return {"kind": "table", "part": part, **texts}
    return {"kind": "figure", "part": part, "svg": Markup(part.svg())}


def write_files(folder: Path, sections: Sequence[Section], formats: Sequence[str]) -> list[Path]:
    """Write tables and figures as files of their own.

    Args:
        folder: Where to; it is made if it is not there.
        sections: The items.
        formats: Some of `FORMATS`; `html` is not written here.

    Returns:
        The files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for section in sections:
        name = section.item.name
        figures = [part for part in section.finding.parts if isinstance(part, Figure)]
        if "png" in formats or ("md" in formats and figures):
            written += [_write(folder / f"{figure.name}.png", figure.png()) for figure in figures]
        if "md" in formats:
            written.append(_write(folder / f"{name}.md", markdown(section).encode()))
        if "latex" in formats and any(isinstance(part, Table) for part in section.finding.parts):
            written.append(_write(folder / f"{name}.tex", latex(section).encode()))
        if "csv" in formats:
            for number, part in enumerate(section.finding.parts, start=1):
                slug = file_name(part.title)[:48].strip("-")
                label = part.name if isinstance(part, Figure) else f"{name}-{number}-{slug}"
                written.append(_write(folder / f"{label}.csv", comma_separated(part.data).encode()))
    return written


def markdown(section: Section) -> str:
    """One item as Markdown; figures are pictures beside it."""
    item, finding = section.item, section.finding
    parts = [f"## {item.title}", f"*{item.question}*", f"**{finding.answer}**"]
    if item.claim:
        parts.append(f"The paper ({item.place}): {item.claim} This {section.verdict}.")
    for part in finding.parts:
        if isinstance(part, Table):
            parts += [f"### {part.title}", markdown_table(part.grid), part.caption]
        else:
            parts += [f"### {part.title}", f"![{part.title}]({part.name}.png)", part.caption]
    parts.append("\n".join(f"- {note}" for note in finding.notes))
    parts.append(f"```\n{section.command}\n```")
    return "\n\n".join(filter(None, parts)) + "\n"


def latex(section: Section) -> str:
    """The tables of one item as LaTeX."""
    parts = [f"% {section.item.title}\n% {section.finding.answer}"]
    for part in section.finding.parts:
        if isinstance(part, Table):
            parts.append(_latex_table(part))
    return "\n\n".join(parts) + "\n"


def _latex_table(table: Table) -> str:
    return latex_table(table.grid, " ".join(filter(None, (f"{table.title}.", table.caption))))


def comma_separated(rows: Sequence[dict[str, Any]]) -> str:
    """Rows as CSV with the columns of all of them; empty where a row has none."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _write(path: Path, content: bytes) -> Path:
    with atomic(path) as temporary:
        temporary.write_bytes(content)
    return path

"""The report on the paper: one HTML page, and tables and figures as files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from neotta._files import write_file
from neotta._words import counted
from neotta.evaluate.provenance import surroundings
from neotta.paper.claims import file_name
from neotta.paper.evidence import Evidence
from neotta.paper.item import Report
from neotta.paper.published import in_words
from neotta.report.figures import Figure, display
from neotta.report.formats import comma_separated, latex_table, markdown_table
from neotta.report.grids import Grid, Table, grid
from neotta.report.html import render

DRAWINGS = ("png", "svg", "pdf")
FORMATS = ("html", "md", "latex", *DRAWINGS, "csv")


def paper_page(reports: Sequence[Report], about: Sequence[tuple[str, str]], problems: dict[str, str]) -> str:
    """The report as one HTML page that needs nothing else; `about` are `facts`, `problems` what was not carried out."""
    shown = [(report, [_part(part) for part in report.parts]) for report in reports]
    return render("paper.html", templates="paper/templates", reports=shown, facts=about, problems=problems)


def facts(evidence: Evidence, seconds: float) -> list[tuple[str, str]]:
    """What was measured on what, and how long it took, for the top of the page."""
    about, study = surroundings(), evidence.study
    machine, rows = about["machine"], []
    for setting in evidence.settings:
        severity = f" at severity {setting.subject.severity}" if setting.subject.corruptions else ""
        what = f"{counted(len(setting.domains), 'domain')}{severity}, {counted(setting.images, 'image')} each"
        presets = ((method, setting.preset(method)) for method in setting.names)
        own = "".join(f"; {method} with the preset {name}" for method, name in presets if name != "paper")
        done = f"; {in_words(setting.preprocess)}" if setting.preprocess else ""
        rows.append((setting.title, f"{what}, {setting.classes} classes{done}{own}"))
    seeds = counted(len(study.seeds), "seed")
    rows.append(("Runs", f"{study.samples} samples of each domain, {seeds}, batches of {study.batch_size}"))
    slow = next((setting for setting in evidence.settings if setting.reduced), None)
    if slow is not None:
        less = f"{counted(slow.slow_samples, 'sample')}, {counted(len(slow.slow_seeds), 'seed')}"
        rows.append(("Reduced", f"methods that need images: {less}"))
    where = machine["gpu"] or f"{machine['processor']}, {counted(machine['cores'], 'core')}"
    rows.append(
        ("Machine", f"{where}; {machine['system']}, Python {machine['python']}, torch {about['packages']['torch']}")
    )
    took = f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
    return [*rows, ("Made", f"{about['time'][:10]}; the last command took {took}")]


def _part(part: Table | Figure) -> dict[str, Any]:
    from markupsafe import Markup

    if isinstance(part, Table):
        shown = _named(part.grid)
        texts = {"markdown": markdown_table(shown), "latex": _latex_table(part)}
        return {"kind": "table", "part": part, "grid": shown, **texts}
    return {"kind": "figure", "part": part, "svg": Markup(part.svg())}


def _named(shown: Grid) -> Grid:
    """A table with the names that figures have for methods and corruptions."""
    rows = ((display(name), entries) for name, entries in shown.rows)
    return Grid(shown.corner, tuple(map(display, shown.columns)), tuple(rows))


def claims(reports: Sequence[Report]) -> Grid:
    """Which claims of the paper hold on which subject."""
    subjects = [setting.title for setting in reports[0].evidence.settings]
    rows = {each.item.name: [each.holds_on(name) or "–" for name in subjects] for each in reports if each.item.claim}
    return grid("claim", subjects, rows)


def write_files(folder: Path, reports: Sequence[Report], formats: Sequence[str]) -> list[Path]:
    """Write tables and figures as files of their own, in all formats but `html`, and return their paths."""
    files: dict[str, str | bytes] = {}
    if "md" in formats:
        files["claims.md"] = f"{markdown_table(claims(reports))}\n"
    for report in reports:
        name = report.item.name
        figures = [part for part in report.parts if isinstance(part, Figure)]
        for kind in DRAWINGS:
            if kind in formats or (kind == "png" and "md" in formats):
                files |= {f"{figure.name}.{kind}": figure.written(kind) for figure in figures}
        if "md" in formats:
            files[f"{name}.md"] = markdown(report)
        if "latex" in formats and any(isinstance(part, Table) for part in report.parts):
            files[f"{name}.tex"] = latex(report)
        if "csv" in formats:
            for number, part in enumerate(report.parts, start=1):
                slug = file_name(part.title)[:48].strip("-")
                label = part.name if isinstance(part, Figure) else f"{name}-{number}-{slug}"
                files[f"{label}.csv"] = comma_separated(part.data)
    for file, content in files.items():
        write_file(folder / file, content)
    return [folder / file for file in files]


def markdown(report: Report) -> str:
    """One item as Markdown; figures are pictures beside it."""
    item = report.item
    parts = [f"## {item.title}", f"*{item.question}*", f"**{report.answer}**"]
    if item.claim:
        parts.append(f"The paper ({item.place}): {item.claim} This {report.verdict}.")
    for part in report.parts:
        shown = markdown_table(_named(part.grid)) if isinstance(part, Table) else f"![{part.title}]({part.name}.png)"
        parts += [f"### {part.title}", shown, part.caption]
    parts.append("\n".join(f"- {note}" for note in report.notes))
    parts.append(f"```\n{report.command}\n```")
    return "\n\n".join(filter(None, parts)) + "\n"


def latex(report: Report) -> str:
    tables = [_latex_table(part) for part in report.parts if isinstance(part, Table)]
    return "\n\n".join([f"% {report.item.title}\n% {report.answer}", *tables]) + "\n"


def _latex_table(table: Table) -> str:
    return latex_table(_named(table.grid), " ".join(filter(None, (f"{table.title}.", table.caption))))

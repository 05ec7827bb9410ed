"""The leaderboard as one HTML page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from neotta._words import counted, printable
from neotta.evaluate.leaderboard import Group, Row
from neotta.evaluate.verdicts import CANNOT_TELL, METRICS
from neotta.report.grids import number
from neotta.report.html import render

SHOWN = 3
"""Number of domains that a heading names; of more it says how many there are."""
HASH = 10
"""Number of characters of a hash that are shown; the rest is in its tooltip."""


def leaderboard_page(groups: Sequence[Group], files: Sequence[str], notes: Sequence[str] = ()) -> str:
    """The page, which needs nothing else.

    Args:
        groups: Rows that compare, group by group.
        files: The names of the files of records.
        notes: What else a reader has to know.
    """
    shown = [_group(group, place, groups) for place, group in enumerate(groups, start=1)]
    return render("leaderboard.html", groups=shown, files=[printable(name) for name in files], notes=notes, short=HASH)


def _group(group: Group, place: int, groups: Sequence[Group]) -> dict[str, Any]:
    conditions = group.conditions
    names = ", ".join(group.domains) if len(group.domains) <= SHOWN else counted(len(group.domains), "domain")
    severity = f"severity {', '.join(group.severities)}" if group.severities else ""
    seeds = counted(len(group.seeds), "seed")
    samples = "all samples" if conditions.samples < 0 else counted(conditions.samples, "sample")
    facts = [
        ("Domains", ", ".join(group.domains)),
        ("Severity", ", ".join(group.severities) or "none"),
        ("Order", group.order),
        ("Samples", f"{samples} of each domain"),
        ("Seeds", ", ".join(map(str, group.seeds))),
    ]
    return {
        "id": f"group-{place}",
        "title": printable(f"{' / '.join(group.models)} on {' / '.join(group.data)}: {names}"),
        "subtitle": ", ".join(filter(None, (severity, samples, seeds, group.order))),
        "facts": [(name, printable(text)) for name, text in facts],
        "identity": group.identity,
        "apart": _apart(group, groups),
        "rows": [_row(row, group) for row in group.rows],
        "best": printable(f"{group.rows[0].label} {number(group.rows[0].accuracy, METRICS['top1'])}"),
    }


def _apart(group: Group, groups: Sequence[Group]) -> list[str]:
    """Why other groups on the same model or data are not ranked with this one."""
    found = []
    for place, other in enumerate(groups, start=1):
        related = {*group.models, *group.data} & {*other.models, *other.data}
        if other is group or not related:
            continue
        words = {
            "weights": "other weights",
            "preprocess": "another preprocessing",
            "orders": "other samples or another order",
        }
        differing = [words[name] for name in words if getattr(group.identity, name) != getattr(other.identity, name)]
        found.append(f"group {place}: {', '.join(differing)}")
    return found


def _row(row: Row, group: Group) -> dict[str, Any]:
    top1, ece = METRICS["top1"], METRICS["ece"]
    behind, level = "", False
    if row.behind is not None:
        behind = number(row.behind.interval, top1, "+")
        level = row.behind.verdict == CANNOT_TELL
    return {
        "rank": row.rank,
        "label": printable(row.label),
        "preset": printable(row.preset),
        "accuracy": number(row.accuracy, top1),
        "behind": behind,
        "level": level,
        "ece": number(row.error, ece),
        "cost": _cost(row),
        "code": printable(row.code),
        "versions": printable(", ".join(row.versions)),
        "files": [printable(name) for name in row.files],
        "differs": row.differs,
        "command": row.command,
        "runs_code": "py:" in row.command,
        "facts": [
            ("Code", printable(f"{row.code or 'not recorded'} (neotta {', '.join(row.versions)})")),
            ("Weights", group.identity.weights),
            ("Orders", group.identity.orders),
            ("Found in", ", ".join(printable(name) for name in row.files)),
            ("Runs", str(len(row.records))),
        ],
    }


def _cost(row: Row) -> tuple[str, str]:
    """A number and what it is: what `neotta bench` measured, if it did; else the time of the runs themselves."""
    if row.cost is not None and row.cost.get("slowdown"):
        above = row.cost.get("memory_above_plain")
        memory = "" if above is None else f", {above / 2**20:+.0f} MiB"
        return f"{row.cost['slowdown']:.2f} x", f"the model's time{memory}"
    if math.isnan(row.seconds):
        return "–", ""
    return f"{1e3 * row.seconds:.3g} ms", "" if row.with_encoder else "without encoder"

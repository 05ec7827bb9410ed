"""What each method needs and promises: the paper's comparison of methods."""

from __future__ import annotations

from neotta.adapters.declaration import Declaration
from neotta.adapters.registry import methods
from neotta.paper.comparing import listed
from neotta.paper.evidence import Evidence
from neotta.paper.item import Finding, Item, Rows, Table
from neotta.report.grids import Entry, Grid

FIELDS = {
    "FTTA": "fully_test_time",
    "HF": "hyperparameter_free",
    "OF": "optimization_free",
    "BI": "batch_size_independent",
    "BF": "backprop_free",
    "FP": "forward_passes",
}
"""The paper's columns, and what a declaration calls them."""

PUBLISHED = {
    "t3a": (True, False, True, False, True, 1),
    "sar": (True, False, False, False, False, 2),
    "lame": (True, True, False, False, True, 1),
    "tent": (True, False, False, False, False, 1),
    "cotta": (True, False, False, False, False, 35),
    "foa": (False, False, False, False, True, 2),
    "surgeon": (True, False, False, False, False, 3),
    "neo-continual": (True, False, True, False, True, 1),
    "neo": (True, True, True, True, True, 1),
}
"""What the paper prints, in the order of its columns."""


class Methods(Item):
    """Table 1."""

    name = "table-methods"
    title = "What each method needs"
    place = "Table 1"
    question = "Which methods do without source data, hyperparameters, optimisation, large batches and backpropagation?"
    claim = "Of the methods compared, only NEO does without all of these, and with a single forward pass."

    def find(self, evidence: Evidence) -> Finding:
        """Read the declarations of all methods; nothing has to be measured."""
        kinds = methods()
        declared = {name: _entries(kind.declaration) for name, kind in kinds.items()}
        titles = {name: kind.title for name, kind in kinds.items()}
        ideal = [name for name in PUBLISHED if name in declared and declared[name] == (True,) * 5 + (1,)]
        caption = (
            "FTTA: fully test-time, without source data. HF: free of hyperparameters. OF: free of optimisation. "
            "BI: independent of the batch size. BF: free of backpropagation. FP: forward passes for a batch, at most. "
            "Paper: what it prints where that differs; – for methods that its table does not have."
        )
        finding = Finding()
        finding.say(_answer(ideal, declared, titles), "yes" if ideal == ["neo"] else "no")
        finding.parts.append(Table("Methods by what they declare", _grid(declared, titles), _rows(declared), caption))
        finding.notes.append("The declared forward passes are what the tests count with default options.")
        return finding


def _entries(declaration: Declaration) -> tuple[bool | int, ...]:
    return tuple(getattr(declaration, field) for field in FIELDS.values())


def _differing(name: str, declared: tuple[bool | int, ...]) -> list[str]:
    """The columns in which a declaration is not what the paper prints."""
    printed = PUBLISHED.get(name, declared)
    return [column for column, mine, theirs in zip(FIELDS, declared, printed, strict=True) if mine != theirs]


def _answer(ideal: list[str], declared: dict[str, tuple[bool | int, ...]], titles: dict[str, str]) -> str:
    known = [name for name in PUBLISHED if name in declared]
    found = f"only {listed([titles[name] for name in ideal])}" if ideal else "none"
    differences = [
        f"{titles[name]} ({column}: {_mark(declared[name][place])}, the paper prints {_mark(PUBLISHED[name][place])})"
        for name in known
        for place, column in enumerate(FIELDS)
        if column in _differing(name, declared[name])
    ]
    but = f", apart from {listed(differences)}" if differences else ""
    return (
        f"Of the {len(known)} methods of the paper's table, {found} can do without all five, in one forward pass; "
        f"every entry is as the paper prints it{but}."
    )


def _grid(declared: dict[str, tuple[bool | int, ...]], titles: dict[str, str]) -> Grid:
    rows = []
    for name, entries in declared.items():
        others = _differing(name, entries)
        printed = dict(zip(FIELDS, PUBLISHED.get(name, entries), strict=True))
        paper = ", ".join(f"{column} {_mark(printed[column])}" for column in others) or "the same"
        texts = [*map(_mark, entries), paper if name in PUBLISHED else Entry().text]
        rows.append((titles[name], tuple(Entry(text) for text in texts)))
    return Grid("method", (*FIELDS, "paper"), tuple(rows))


def _rows(declared: dict[str, tuple[bool | int, ...]]) -> Rows:
    rows: Rows = []
    for name, entries in declared.items():
        row = {"method": name, **dict(zip(FIELDS, entries, strict=True))}
        printed = PUBLISHED.get(name, (None,) * len(FIELDS))
        rows.append(row | {f"published_{column}": value for column, value in zip(FIELDS, printed, strict=True)})
    return rows


def _mark(value: bool | int) -> str:
    return str(value) if not isinstance(value, bool) else "✓" if value else "✗"

"""What each method needs and promises: the paper's comparison of methods."""

from __future__ import annotations

from neotta.adapters.registry import methods
from neotta.paper.item import Case, item
from neotta.paper.tables import Rows
from neotta.paper.words import listed
from neotta.report.grids import Entry, Table, grid

FIELDS = {
    "FTTA": "fully_test_time",
    "HPF": "hyperparameter_free",
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
IDEAL = (True,) * 5 + (1,)


@item(
    order=1,
    name="methods",
    title="What each method needs",
    place="Table 1",
    question="Which methods do without source data, hyperparameters, optimisation, large batches and backpropagation?",
    claim="Of the methods compared, only NEO does without all of these, and with a single forward pass.",
    remarks=("The declared forward passes are what the tests count with default options.",),
    once=True,
)
def show(case: Case) -> None:
    """Read the declarations of all methods; nothing has to be measured."""
    shown, data, differing, ideal = dict[str, list[str]](), Rows(), list[str](), list[str]()
    for name, kind in methods().items():
        declared = {column: getattr(kind.declaration, field) for column, field in FIELDS.items()}
        printed = dict(zip(FIELDS, PUBLISHED.get(name, tuple(declared.values())), strict=True))
        changed = [column for column in FIELDS if declared[column] != printed[column]]
        paper = ", ".join(f"{column} {_mark(printed[column])}" for column in changed) or "the same"
        shown[kind.title] = [*map(_mark, declared.values()), paper if name in PUBLISHED else Entry().text]
        known = printed if name in PUBLISHED else dict.fromkeys(FIELDS)
        data.append({"method": name, **declared, **{f"published_{column}": known[column] for column in FIELDS}})
        differing += [
            f"{kind.title} ({column}: {_mark(declared[column])}, the paper prints {_mark(printed[column])})"
            for column in changed
        ]
        ideal += [kind.title] if name in PUBLISHED and tuple(declared.values()) == IDEAL else []
    caption = (
        "FTTA: fully test-time, without source data. HPF: free of hyperparameters. OF: free of optimisation. "
        "BI: independent of the batch size. BF: free of backpropagation. FP: forward passes for a batch, at most. "
        "Paper: what it prints where that differs; – for methods that its table does not have."
    )
    table = Table("Methods by what they declare", grid("method", (*FIELDS, "paper"), shown), data, caption)
    case.add(table)
    found = f"only {listed(ideal)}" if ideal else "none"
    but = f", apart from {listed(differing)}" if differing else ""
    case.finding.say(
        f"Of the {len(PUBLISHED)} methods of the paper's table, {found} can do without all five, in one forward "
        f"pass; every entry is as the paper prints it{but}.",
        "yes" if ideal == [methods()["neo"].title] else "no",
    )


def _mark(value: bool | int) -> str:
    return str(value) if not isinstance(value, bool) else "✓" if value else "✗"

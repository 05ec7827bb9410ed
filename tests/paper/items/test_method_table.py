from __future__ import annotations

import re

import neotta
from neotta.paper.item import chosen
from neotta.paper.items.resources import DECLARED, FIELDS
from neotta.paper.page import latex

(ITEM,) = chosen(["methods"])
NAMES = {"NEO-Cont.": "neo-continual"}


def printed_table(tex):
    """The rows of Table 1 in the source of the paper, by method."""
    body = tex[: tex.index("tab:intro_compare_baselines")].rpartition(r"\midrule")[2]
    body = body.replace(r"\acronym{}", "NEO").replace(" (ours)", "").replace(r"\footnotemark", "")
    found = {}
    for line in re.findall(r"^\s*(\S.*&.*) \\\\$", body, re.MULTILINE):
        name, *marks, passes = (cell.strip() for cell in line.split("&"))
        found[NAMES.get(name, name.lower())] = (*(mark == r"\cmark" for mark in marks), int(passes))
    return found


def test_the_published_entries_are_those_of_the_paper(shared):
    assert printed_table((shared / "paper" / "neo.tex").read_text()) == DECLARED


def test_every_method_is_listed_with_what_it_declares(evidence):
    (table,) = ITEM.find(evidence).parts
    kinds = neotta.methods()
    assert [row["method"] for row in table.data] == list(dict.fromkeys([*DECLARED, *kinds])), "the paper's order"
    for row, (title, entries) in zip(table.data, table.grid.rows, strict=True):
        kind = kinds[row["method"]]
        assert title == kind.title
        for place, (column, field) in enumerate(FIELDS.items()):
            value = getattr(kind.declaration, field)
            assert row[column] == value
            assert entries[place].text == (str(value) if column == "FP" else "✓" if value else "✗")


def test_differences_to_the_paper_are_named_and_no_others(evidence):
    finding = ITEM.find(evidence)
    (table,) = finding.parts
    paper = {row["method"]: entries[-1].text for row, (_, entries) in zip(table.data, table.grid.rows, strict=True)}
    assert {name: text for name, text in paper.items() if text not in ("the same", "–")} == {
        "cotta": "FP 35",
        "foa": "FP 2",
    }
    assert {name for name, text in paper.items() if text == "–"} == set(neotta.methods()) - set(DECLARED)
    assert "CoTTA (FP: 34, the paper prints 35) and FOA (FP: 3, the paper prints 2)" in finding.answer
    for name, kind in neotta.methods().items():
        passes = kind.declaration.published_passes
        assert passes is None or passes == DECLARED[name][-1]


def test_only_neo_does_without_everything(evidence):
    finding = ITEM.find(evidence)
    free = [name for name, entries in DECLARED.items() if entries == (True, True, True, True, True, 1)]
    assert free == ["neo"]
    assert finding.holds == "yes"
    assert "only NEO can do without all five" in finding.answer


def test_latex_knows_every_character(evidence):
    text = latex(ITEM.find(evidence))
    assert text.isascii()
    assert r"$\checkmark$" in text
    assert r"$\times$" in text

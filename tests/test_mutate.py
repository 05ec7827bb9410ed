"""The tool that tests the tests: what it changes, what it draws, and what it leaves out."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

from equivalent_mutants import EQUIVALENT  # noqa: E402
from mutants import mutants  # noqa: E402
from mutate import MODULES, candidates, draw  # noqa: E402

SOURCE = '''
def share(part, whole=1):
    """Text for people + 1."""
    if whole > 0 and part:
        return {"share": part / whole, "part": max(part, 0.5)}
    raise ValueError(f"{whole + 1}")
'''


CHANGES = [
    ("whole=1", "whole=2"),
    ("if whole > 0 and part", "if not (whole > 0 and part)"),
    ("whole > 0 and part", "whole > 0 or part"),
    ("whole > 0 and part", "whole >= 0 and part"),
    ("whole > 0", "whole > 1"),
    ('"share": part / whole, ', ""),
    (', "part": max(part, 0.5)', ""),
    ("part / whole", "part * whole"),
    ("max(part, 0.5)", "min(part, 0.5)"),
    ("max(part, 0.5)", "max(part, 0.76)"),
]


def test_every_kind_of_change_is_made_once_and_text_for_people_is_left_alone():
    expected = [ast.unparse(ast.parse(SOURCE.replace(*change, 1))) for change in CHANGES]
    assert sorted(mutant.source for mutant in mutants(SOURCE)) == sorted(expected)


@pytest.mark.parametrize("name", MODULES)
def test_tests_that_are_named_exist(name):
    file, tests = MODULES[name]
    assert (ROOT / "src/neotta" / file).is_file()
    assert tests
    assert all((ROOT / "tests" / test).is_file() for test in tests)


@pytest.mark.slow
@pytest.mark.parametrize("name", EQUIVALENT)
def test_what_is_left_out_is_a_change_of_today_and_has_a_reason(name):
    changes = [mutant.change for mutant in mutants((ROOT / "src/neotta" / MODULES[name][0]).read_text())]
    for change, reason in EQUIVALENT[name].items():
        assert changes.count(change) == 1, f"{change!r} is made {changes.count(change)} times: correct or delete it"
        assert len(reason.split()) > 3
    left = [mutant.change for mutant in candidates(name)]
    assert left == [change for change in changes if change not in EQUIVALENT[name]]


def test_a_sample_is_that_of_its_seed_and_holds_nothing_of_other_seeds():
    every = candidates("metrics")
    first, again = (draw(every, 20, 0, []) for _ in range(2))
    other = draw(every, 20, 1, [0])
    assert first == again
    assert len(set(first)) == len(set(other)) == 20
    assert not set(first) & set(other)
    assert draw(every, 0, 0, []) == sorted(every)

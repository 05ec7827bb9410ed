"""Every promise in docs/guarantees.md names tests, and they are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "guarantees.md"
PROMISES = (
    re.findall(r"^\| (\*\*.*) \| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE) if PAGE.exists() else []
)


def functions(path: Path) -> set[str]:
    return set(re.findall(r"^(?:def|class) (test_\w+|Test\w+)", path.read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.skipif(not PAGE.exists(), reason="needs the folder docs/")
def test_there_are_promises():
    assert len(PROMISES) >= 15


@pytest.mark.parametrize(("promise", "held_by"), PROMISES, ids=[promise[:40] for promise, _ in PROMISES])
def test_a_promise_names_tests_that_exist(promise, held_by):
    named = re.findall(r"`([^`]+)`", held_by)
    assert named, "a promise without a test"
    for name in named:
        file, _, function = name.partition("::")
        path = ROOT / file
        assert path.exists(), f"{name} does not exist"
        found = set().union(*(functions(each) for each in (path.rglob("test_*.py") if path.is_dir() else [path])))
        assert found, f"{name} holds no tests"
        assert not function or function in found, f"{name} does not exist"


def test_tests_named_in_the_text_exist():
    for name in re.findall(r"`(tests/[\w/.]+)`", PAGE.read_text(encoding="utf-8")) if PAGE.exists() else []:
        assert (ROOT / name).exists(), name

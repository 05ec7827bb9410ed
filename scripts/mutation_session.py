"""Run the tests of a module against many mutants of it, in forks of one process that has imported and collected them.

A change inside a function is made in memory: the fork gives the functions that exist the code of the changed file. So a
mutant costs what the tests cost that reach the changed line, the quickest first, up to the first that fails.
"""

from __future__ import annotations

import ast
import gc
import importlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple

import hypothesis
import pytest
from forks import succeeds
from mutants import Mutant

Notes = dict[str, tuple[float, list[int]]]
"""How long each test takes, and which lines of the module it runs."""


class Outcome(NamedTuple):
    """What became of the mutants of a module.

    Attributes:
        passed: Whether the tests pass without any change.
        alive: The positions of those that no test noticed.
        left: The positions of those that cannot be made in memory: of defaults, classes and constants.
        notes: See `Notes`.
    """

    passed: bool
    alive: list[int]
    left: list[int]
    notes: Notes


class MutationSession:
    """A plugin of pytest that runs its tests against mutants instead of once.

    Args:
        name: The module, such as `neotta.neo.moments`.
        source: Its file, which holds the mutant while tests run: they may start processes.
        drawn: The mutants.
        folder: Where forks leave what they have found.
    """

    def __init__(self, name: str, source: Path, drawn: list[Mutant], folder: Path) -> None:
        self._name, self._source, self._drawn, self._folder = name, source, drawn, folder

    def pytest_sessionstart(self) -> None:
        """A failure is all that counts: it need not be made small."""
        phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
        now = hypothesis.settings()
        hypothesis.settings.register_profile("mutation", now, phases=phases, database=None, report_multiple_bugs=False)
        hypothesis.settings.load_profile("mutation")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run the tests as they are, then against each mutant."""
        importlib.import_module(self._name)
        original = self._source.read_text()
        passed = succeeds(lambda: self._run_and_note(session.items), 1200) and bool(session.items)
        notes: Notes = json.loads((self._folder / "notes").read_text()) if passed else {}
        alive, left = [], []
        for place, mutant in enumerate(self._drawn if passed else []):
            if not changes_functions_only(original, mutant.source):
                left.append(place)
                continue
            items = reaching(session.items, notes, mutant.line)
            limit = 30 + 5 * sum(notes[item.nodeid][0] for item in items)
            self._source.write_text(mutant.source)
            if succeeds(lambda mutant=mutant, items=items: self._run_changed(mutant, items), limit):
                alive.append(place)
        self._source.write_text(original)
        (self._folder / "outcome").write_text(json.dumps(Outcome(passed, alive, left, notes)))
        return True

    def _run_changed(self, mutant: Mutant, items: list[pytest.Item]) -> bool:
        exchange_code(self._source, mutant.source)
        return run(items)

    def _run_and_note(self, items: list[pytest.Item]) -> bool:
        """Run the tests, and note the lines of the module that each runs."""
        notes: Notes = {}
        for item, following in zip(items, [*items[1:], None], strict=True):
            lines: set[int] = set()
            trace = self._tracer(lines)
            sys.settrace(trace)
            threading.settrace(trace)
            began = time.monotonic()
            passed = run([item], following)
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]
            notes[item.nodeid] = (time.monotonic() - began, sorted(lines))
            if not passed:
                return False
        (self._folder / "notes").write_text(json.dumps(notes))
        return True

    def _tracer(self, lines: set[int]) -> Callable[..., Any]:
        file = str(self._source)

        def trace(frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
            if frame.f_code.co_filename != file:
                return None
            lines.add(frame.f_lineno)
            return trace

        return trace


def run(items: list[pytest.Item], following: pytest.Item | None = None) -> bool:
    """Run tests up to the first that fails; `following` is the test that comes after the last."""
    for item, after in zip(items, [*items[1:], following], strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
        if item.session.testsfailed:
            return False
    return True


def reaching(items: list[pytest.Item], notes: Notes, line: int) -> list[pytest.Item]:
    """The tests that run a line, the quickest first; all of them if it runs only on import or in other processes."""
    found = [item for item in items if line in notes[item.nodeid][1]] or items
    return sorted(found, key=lambda item: notes[item.nodeid][0])


def changes_functions_only(before: str, after: str) -> bool:
    """Whether two versions of a file are the same but for the bodies of functions."""
    return _without_bodies(before) == _without_bodies(after)


def _without_bodies(source: str) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.body = [ast.Pass()]
    return ast.unparse(tree)


def exchange_code(file: Path, source: str) -> None:
    """Give all functions of a file that exist the code that they have in another version of it."""
    found: dict[str, list[CodeType]] = {}
    for name, code in _functions(compile(source, str(file), "exec")):
        found.setdefault(name, []).append(code)
    mine: dict[str, list[FunctionType]] = {}
    for each in gc.get_objects():
        if type(each) is FunctionType and each.__code__.co_filename == str(file):
            mine.setdefault(_name_of(each.__code__, each.__qualname__), []).append(each)
    for name, functions in mine.items():
        lines = sorted({function.__code__.co_firstlineno for function in functions})
        for function in functions:
            place = lines.index(function.__code__.co_firstlineno)  # a property and its setter have one name
            function.__code__ = found[name][place]


def _name_of(code: CodeType, name: str) -> str:
    return name if name.split(".")[-1] == code.co_name else f"{name.rpartition('.')[0]}.{code.co_name}".lstrip(".")


def _functions(code: CodeType, prefix: str = "") -> Iterator[tuple[str, CodeType]]:
    """All functions in compiled code by qualified name."""
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            name = prefix + inner.co_name
            is_function = bool(inner.co_flags & 0x02)  # classes have no fast locals
            if is_function:
                yield name, inner
            yield from _functions(inner, f"{name}.<locals>." if is_function else f"{name}.")


def judge_in_memory(name: str, source: Path, drawn: list[Mutant], tests: list[str], folder: Path, log: Path) -> Outcome:
    """Run tests against mutants of a module, in a process of their own.

    Args:
        name: The module.
        source: Its file in a copy of the project.
        drawn: The mutants.
        tests: Files of tests, from the folder of that copy.
        folder: For what is found.
        log: Gets what the tests print.
    """
    outcome = folder / "outcome"
    outcome.unlink(missing_ok=True)
    plugin = MutationSession(name, source, drawn, folder)
    options = ["-x", "-q", "-p", "no:cacheprovider", "--assert=plain", "--tb=short"]

    def test() -> bool:
        with log.open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        os.chdir(source.parents[len(name.split("."))])
        pytest.main([*options, *tests], plugins=[plugin])
        return True

    succeeds(test, 24 * 3600)
    return Outcome(*json.loads(outcome.read_text())) if outcome.exists() else Outcome(False, [], [], {})

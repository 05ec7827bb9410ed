"""Run first the tests that reach a changed line, the quickest of them first: most mutants then end in a second."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import hypothesis
import pytest


class MutationOrder:
    """A plugin of pytest. Without a line it records which lines of a file each test runs, and how long it takes.

    Args:
        source: The file that is changed.
        notes: Where the record is kept: tests run in another process.
        line: The changed line; None to record.
    """

    def __init__(self, source: Path, notes: Path, line: int | None = None) -> None:
        self._source, self._notes, self._line = str(source), notes, line
        self._tests: dict[str, tuple[float, list[int]]] = {}
        self._lines: set[int] = set()

    def load(self) -> None:
        """Read what was recorded."""
        self._tests = json.loads(self._notes.read_text())

    def at(self, line: int) -> MutationOrder:
        """The order for a change of this line."""
        order = MutationOrder(Path(self._source), self._notes, line)
        order._tests = self._tests
        return order

    def pytest_sessionstart(self) -> None:
        """A failure is all that counts: it need not be made small."""
        phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
        now = hypothesis.settings()
        hypothesis.settings.register_profile("mutation", now, phases=phases, database=None, report_multiple_bugs=False)
        hypothesis.settings.load_profile("mutation")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Sort the tests: those that reach the line, then the others, which may do so in another process."""
        if self._line is not None:
            items.sort(key=self._rank)

    def _rank(self, item: pytest.Item) -> tuple[bool, float]:
        seconds, lines = self._tests.get(item.nodeid, (0.0, []))
        return self._line not in lines, seconds

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Record the lines that a test runs, with its fixtures."""
        if self._line is not None:
            return (yield)
        self._lines = set()
        sys.settrace(self._trace)
        threading.settrace(self._trace)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]
            seconds = self._tests.get(item.nodeid, (0.0, []))[0]
            self._tests[item.nodeid] = (seconds, sorted(self._lines))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the time that a part of a test took."""
        seconds, lines = self._tests.get(report.nodeid, (0.0, []))
        self._tests[report.nodeid] = (seconds + report.duration, lines)

    def pytest_sessionfinish(self) -> None:
        """Write the record."""
        if self._line is None:
            self._notes.write_text(json.dumps(self._tests))

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        if frame.f_code.co_filename != self._source:
            return None
        self._lines.add(frame.f_lineno)
        return self._trace

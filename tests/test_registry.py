"""Registries: what is registered, announced by packages, or named by its file."""

from __future__ import annotations

import importlib.metadata

import pytest

from neotta import _registry
from neotta._registry import Registry
from neotta.errors import CodeError, NeottaError, UnknownNameError


@pytest.fixture
def announced(monkeypatch):
    """Let installed packages announce things."""

    def announce(**things):
        entries = [importlib.metadata.EntryPoint(name, value, "test") for name, value in things.items()]
        monkeypatch.setattr(_registry, "entry_points", lambda group: entries)

    return announce


def test_registered_things_are_found_by_name():
    registry = Registry("tool")
    registry.decorator("saw")(str)
    assert registry.find("saw") is str
    assert dict(registry) == {"saw": str}
    with pytest.raises(ValueError, match="already a tool 'saw'"):
        registry.register("saw", int)
    with pytest.raises(UnknownNameError, match="unknown tool 'sow': did you mean 'saw'"):
        registry.find("sow")


def test_announced_things_are_imported_when_they_are_asked_for(announced):
    announced(square="math:sqrt", broken="no_such_module:thing")
    registry = Registry("tool", group="test")
    assert sorted(registry) == ["broken", "square"]
    assert registry.find("square")(9.0) == 3.0
    with pytest.raises(NeottaError, match="'broken' of 'no_such_module:thing' cannot be loaded"):
        registry.find("broken")


def test_a_name_that_is_taken_is_not_taken_over(announced):
    announced(saw="math:sqrt")
    registry = Registry("tool", group="test")
    registry.register("saw", str)
    with pytest.warns(RuntimeWarning, match="the name is taken"):
        assert registry.find("saw") is str


def test_things_are_loaded_from_a_file(tmp_path):
    (tmp_path / "mine.py").write_text("from helper import VALUE\ndef tool(): return VALUE\nraise_ = None\n")
    (tmp_path / "helper.py").write_text("VALUE = 7\n")
    registry = Registry("tool")
    assert registry.find(f"py:{tmp_path}/mine.py:tool")() == 7
    with pytest.raises(UnknownNameError, match=r"did you mean 'py:.*mine.py:tool'"):
        registry.find(f"py:{tmp_path}/mine.py:tol")
    with pytest.raises(CodeError, match="there is no file"):
        registry.find(f"py:{tmp_path}/none.py:tool")
    (tmp_path / "bad.py").write_text("1 / 0\n")
    with pytest.raises(CodeError, match="raised ZeroDivisionError"):
        registry.find(f"py:{tmp_path}/bad.py:tool")

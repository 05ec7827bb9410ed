"""Registries: what is registered, announced by packages, or named by its file."""

from __future__ import annotations

import importlib.metadata
import os

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
    (tmp_path / "mine.py").write_text("from beside_the_registry import VALUE\ndef tool(): return VALUE\n")
    (tmp_path / "beside_the_registry.py").write_text("VALUE = 7\n")
    registry = Registry("tool")
    assert registry.find(f"py:{tmp_path}/mine.py:tool")() == 7
    with pytest.raises(UnknownNameError, match=r"did you mean 'py:.*mine.py:tool'"):
        registry.find(f"py:{tmp_path}/mine.py:tol")
    with pytest.raises(CodeError, match="there is no file"):
        registry.find(f"py:{tmp_path}/none.py:tool")
    (tmp_path / "bad.py").write_text("1 / 0\n")
    with pytest.raises(CodeError, match="raised ZeroDivisionError"):
        registry.find(f"py:{tmp_path}/bad.py:tool")


def test_a_file_is_loaded_once_and_again_when_it_changes(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("class Tool: pass\n")
    registry = Registry("tool")
    first = registry.find(f"py:{file}:Tool")
    assert registry.find(f"py:{file}:Tool") is first
    file.write_text("class Tool: size = 2\n")
    os.utime(file, (1, 1))
    assert registry.find(f"py:{file}:Tool").size == 2


def test_what_is_defined_again_replaces_itself():
    registry = Registry("tool")

    def define():
        return registry.register("saw", type("Saw", (), {"__module__": "notebook"}))

    assert define() is not define()
    with pytest.raises(ValueError, match="already a tool 'saw'"):
        registry.register("saw", type("Saw", (), {"__module__": "elsewhere"}))


def test_a_plug_in_that_cannot_be_loaded_does_not_hide_the_others(announced):
    announced(square="math:sqrt", broken="no_such_module:thing")
    registry = Registry("tool", group="test")
    with pytest.warns(RuntimeWarning, match="'broken' of 'no_such_module:thing' cannot be loaded"):
        assert list(registry.available()) == ["square"]
    for _ in range(2):
        with pytest.raises(NeottaError, match="'broken' of 'no_such_module:thing' cannot be loaded"):
            registry.find("broken")

"""The check of the public interface finds what breaks users, and nothing else."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

griffe = pytest.importorskip("griffe", reason="needs the package griffe")
ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("check_interface", ROOT / "scripts" / "check_interface.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def package(folder, script, *, names, code, version="0.2.0"):
    """A package with the layout of neotta, whose public names come from the module `_inside`."""
    root = folder / "neotta"
    for inner in script.PACKAGES:
        home = root / inner.replace(".", "/")
        home.mkdir(parents=True, exist_ok=True)
        (home / "__init__.py").write_text("__all__ = []\n")
    (root / "evaluate" / "__init__.py").write_text("")
    (root / "errors" / "__init__.py").write_text("class NeottaError(Exception): ...\n")
    listed = ", ".join(map(repr, names))
    (root / "__init__.py").write_text(f"from neotta._inside import {', '.join(names)}\n__all__ = [{listed}]\n")
    (root / "_inside.py").write_text(code)
    (root / "_version.py").write_text(f'__version__ = "{version}"\n')
    return griffe.load("neotta", search_paths=[str(folder)], try_relative_path=False)


def test_what_breaks_users_is_found_and_what_is_internal_is_not(tmp_path, script):
    code = "def adapt(model, method='neo'): ...\ndef fold(model): ...\ndef internal(): ...\n"
    old = package(tmp_path / "old", script, names=["adapt", "fold"], code=code)
    assert list(script.breakages(old, old)) == []
    code = "def adapt(model): ...\ndef fold(model, stream=None): ...\n"
    new = package(tmp_path / "new", script, names=["adapt", "fold"], code=code)
    assert [line.split(":")[0] for line in script.breakages(old, new)] == ["neotta.adapt"]
    new = package(tmp_path / "gone", script, names=["adapt"], code="def adapt(model, method='neo'): ...\n")
    assert "neotta.fold: removed" in list(script.breakages(old, new))


def test_a_patch_release_is_told_from_a_minor_one(tmp_path, script):
    made = {
        number: package(tmp_path / number, script, names=["adapt"], code="def adapt(): ...\n", version=number)
        for number in ("0.2.0", "0.2.1", "0.3.0")
    }
    assert script.version(made["0.2.0"]) == script.version(made["0.2.1"]) != script.version(made["0.3.0"])

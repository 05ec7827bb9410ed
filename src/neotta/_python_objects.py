"""Loading of user-defined objects by location: `py:<module or path/to/file.py>:<name>`."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from neotta.errors import CodeError, NeottaError, UnknownNameError

FROM_FILE = "neotta_file_"
"""How the names of modules begin that were imported from a file."""


def load_object(target: str) -> Any:
    """Import a user's file or module and return one of its objects.

    Args:
        target: `"py:<module>:<name>"` or `"py:<path>.py:<name>"`; paths are relative to the working directory.

    Raises:
        UnknownNameError: The module does not define this name.
        CodeError: The file or module does not exist, or its code raises an error.
    """
    place, _, name = target.removeprefix("py:").rpartition(":")
    if not place or not name:
        raise CodeError(f"{target!r} names no object: expected py:<module or file.py>:<name>")
    path = Path(place).expanduser() if place.endswith(".py") else None
    with beside(target), blamed_on(f"py:{place}"):
        module = importlib.import_module(place) if path is None else _import_file(path)
    found = getattr(module, name, None)
    if found is None:
        known = [each for each, value in vars(module).items() if callable(value) and not each.startswith("_")]
        raise UnknownNameError("object", target, [f"py:{place}:{each}" for each in known])
    return found


@contextlib.contextmanager
def beside(target: str) -> Iterator[None]:
    """Let user code import its siblings: put its folder (of a module: the working directory) on Python's path."""
    place = target.removeprefix("py:").rpartition(":")[0]
    folder = Path(place).expanduser().parent.resolve() if place.endswith(".py") else Path.cwd()
    sys.path.append(str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


@contextlib.contextmanager
def blamed_on(what: str) -> Iterator[None]:
    """Convert errors raised by user code to `CodeError`; neotta's own errors pass through."""
    try:
        yield
    except NeottaError:
        raise
    except Exception as error:
        raise CodeError(f"{what} raised {type(error).__name__}: {error}") from error


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise CodeError(f"there is no file {str(path)!r}")
    name = f"{FROM_FILE}{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise CodeError(f"{str(path)!r} cannot be imported")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses look up their module here
    spec.loader.exec_module(module)
    return module

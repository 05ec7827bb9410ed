"""Registries of methods, data layouts, corruptions and exporters, which can be extended from outside.

A registry contains what is registered with its decorator and what installed packages declare as entry points. A name
that starts with `py:` is loaded from a file or module.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

from neotta._warning import warn
from neotta.errors import CodeError, NeottaError, UnknownNameError

T = TypeVar("T")
Thing = TypeVar("Thing")

FROM_FILE = "neotta_file_"
"""How the names of modules begin that were imported from a file."""


class Registry(Mapping[str, T], Generic[T]):
    """Objects of one kind by name.

    Args:
        kind: Used in messages, for example "method".
        group: The entry-point group for plug-ins; None if there are none.
        builtin: Modules that register the built-in objects, imported on first use.
        check: Called with the name and the object before registration; raises an error to reject it.
        error: Creates the error for an unknown name from the name and the known names.
    """

    def __init__(
        self,
        kind: str,
        *,
        group: str | None = None,
        builtin: tuple[str, ...] = (),
        check: Callable[[str, T], None] = lambda name, thing: None,
        error: Callable[[str, list[str]], NeottaError] | None = None,
    ) -> None:
        self.kind = kind
        self.group = group
        self._builtin = builtin
        self._check = check
        self._error = error or (lambda name, known: UnknownNameError(kind, name, known))
        self._things: dict[str, T] = {}
        self._files: dict[tuple[str, Path, float], T] = {}
        self._plugins: dict[str, EntryPoint] = {}
        self._ready = False

    def register(self, name: str, thing: T) -> T:
        """Register an object; redefining a class or function (in a notebook, by a reload) replaces it."""
        self._check(name, thing)
        present = self._things.get(name)
        if present is not None and _origin(present) != _origin(thing):
            raise ValueError(f"there is already a {self.kind} {name!r}: {present!r}")
        self._things[name] = thing
        return thing

    def decorator(self, name: str) -> Callable[[Thing], Thing]:
        """`register` as a decorator."""

        def add(thing: Thing) -> Thing:
            self.register(name, thing)  # type: ignore[arg-type]
            return thing

        return add

    def find(self, name: str) -> T:
        """Return the object of this name; `py:path/to/file.py:Name` and `py:module:Name` are imported."""
        if name.startswith("py:"):
            return self._from_file(name)
        self._load()
        if name in self._plugins:
            self._take(name, self._plugins[name])
        if name not in self._things:
            raise self._error(name, list(self))
        return self._things[name]

    def available(self) -> dict[str, T]:
        """Load everything; a plug-in that fails is skipped with a warning."""
        entries: dict[str, T] = {}
        for name in self:
            try:
                entries[name] = self.find(name)
            except NeottaError as error:
                warn(str(error))
        return entries

    def _from_file(self, name: str) -> T:
        path = Path(name.removeprefix("py:").rpartition(":")[0]).expanduser()
        changed = path.stat().st_mtime if path.is_file() else 0.0
        key = (name, Path.cwd(), changed)
        if key not in self._files:
            thing: T = load_object(name)
            self._check(name, thing)
            self._files[key] = thing
        return self._files[key]

    def _load(self) -> None:
        if self._ready:
            return
        self._ready = True
        for module in self._builtin:
            importlib.import_module(module)
        for entry in entry_points(group=self.group) if self.group else ():
            if entry.name in self._things:
                warn(f"the {self.kind} {entry.name!r} of {entry.value!r} is ignored: the name is taken")
            else:
                self._plugins[entry.name] = entry

    def _take(self, name: str, entry: EntryPoint) -> None:
        try:
            thing = entry.load()
            if name not in self._things:  # its decorator may have done so
                self.register(name, thing)
            del self._plugins[name]
        except Exception as error:
            raise NeottaError(f"the {self.kind} {name!r} of {entry.value!r} cannot be loaded: {error}") from error

    # ---- mapping: everything registered, plug-ins included

    def __getitem__(self, name: str) -> T:
        return self.find(name)

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter([*self._things, *self._plugins])

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _origin(thing: Any) -> Any:
    """Identify a class or function by where it is defined, anything else by itself."""
    if isinstance(thing, type) or callable(thing):
        return getattr(thing, "__module__", None), getattr(thing, "__qualname__", id(thing))
    return id(thing)


# ---- objects by location: `py:<module or path/to/file.py>:<name>`


def load_object(target: str) -> Any:
    """An object of a user's code, `py:<module>:<name>` or `py:<path>.py:<name>`, relative to the working directory."""
    place, _, name = target.removeprefix("py:").rpartition(":")
    if not place or not name:
        raise CodeError(f"{target!r} names no object: expected py:<module or file.py>:<name>")
    path = Path(place).expanduser() if place.endswith(".py") else None
    with beside(target), blamed_on(f"py:{place}"):
        module = importlib.import_module(place) if path is None else _import_file(path)
    loaded = getattr(module, name, None)
    if loaded is None:
        known = [each for each, value in vars(module).items() if callable(value) and not each.startswith("_")]
        raise UnknownNameError("object", target, [f"py:{place}:{each}" for each in known])
    return loaded


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

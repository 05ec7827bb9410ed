"""Registries of methods, data layouts, corruptions and exporters, which can be extended from outside.

A registry contains what is registered with its decorator and what installed packages declare as entry points. A name
that starts with `py:` is loaded from a file or module.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar

from neotta._python_objects import load_object
from neotta._warning import warn
from neotta.errors import NeottaError, UnknownNameError

T = TypeVar("T")
Thing = TypeVar("Thing")


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
        """Register an object; redefining a class or function (in a notebook, by a reload) replaces it.

        Raises:
            ValueError: The name is already registered.
        """
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
        """Return the object of this name; `py:path/to/file.py:Name` and `py:module:Name` are imported.

        Raises:
            NeottaError: The name is unknown, or its code raises an error.
        """
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
        found: dict[str, T] = {}
        for name in self:
            try:
                found[name] = self.find(name)
            except NeottaError as error:
                warn(str(error))
        return found

    def _from_file(self, name: str) -> T:
        """Load an object from a file or module, again only if the file has changed."""
        path = Path(name.removeprefix("py:").rpartition(":")[0]).expanduser()
        changed = path.stat().st_mtime if path.is_file() else 0.0
        key = (name, Path.cwd(), changed)
        if key not in self._files:
            thing: T = load_object(name)
            self._check(name, thing)
            self._files[key] = thing
        return self._files[key]

    def _load(self) -> None:
        """Import the built-in modules and find the plug-ins, once."""
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
        """Import a plug-in."""
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

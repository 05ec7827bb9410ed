"""Models of the user's own, made by a function: `py:<module or path/to/file.py>:<function>`."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from neotta.errors import ModelLoadError, NeottaError, OptionError, UnknownModelError

FORM = "py:<module or file.py>:<function>"


def call_python(target: str, options: Mapping[str, Any]) -> Any:
    """Import a function and call it.

    The folder of the file (of a module: the working directory) is on Python's path meanwhile, so that the code finds
    what lies beside it.

    Args:
        target: `"<module>:<function>"` or `"<path>.py:<function>"`; relative paths start at the working directory.
        options: What the function is called with.

    Returns:
        Whatever the function returns.

    Raises:
        UnknownModelError: There is no such function.
        OptionError: The function does not take these options.
        ModelLoadError: There is no such file or module, what is named there is no function, or the code raises an
            error.
    """
    place, _, name = target.rpartition(":")
    if not place or not name:
        raise ModelLoadError(f"'py:{target}' names no function: a model of your own is named {FORM}")
    path = Path(place).expanduser() if place.endswith(".py") else None
    with _on_the_path(Path.cwd() if path is None else path.parent.resolve()):
        with _blamed_on(place):
            module = importlib.import_module(place) if path is None else _import_file(path)
        function = _function(module, place, name)
        _check_options(function, target, options)
        with _blamed_on(target):
            return function(**options)


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ModelLoadError(f"there is no file {str(path)!r}")
    name = f"neotta_file_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise ModelLoadError(f"{str(path)!r} cannot be imported")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


def _function(module: ModuleType, place: str, name: str) -> Callable[..., Any]:
    from torch import nn

    found = getattr(module, name, None)
    if found is None:
        known = [each for each, value in vars(module).items() if callable(value) and not each.startswith("_")]
        if not known:
            raise ModelLoadError(f"{place} defines no function, so none of the name {name!r}")
        raise UnknownModelError(f"py:{place}:{name}", [f"py:{place}:{each}" for each in known])
    if not callable(found) or isinstance(found, nn.Module):
        kind = type(found).__name__
        raise ModelLoadError(f"{name!r} in {place} is of type {kind}: name a function that returns the model")
    return found  # type: ignore[no-any-return]


def _check_options(function: Callable[..., Any], target: str, options: Mapping[str, Any]) -> None:
    try:
        inspect.signature(function).bind(**options)
    except TypeError as error:
        given = ", ".join(options) or "no options"
        raise OptionError(f"py:{target} cannot be called with {given}: {error}") from None


@contextlib.contextmanager
def _on_the_path(folder: Path) -> Iterator[None]:
    """Let Python look into a folder too, after everything else."""
    entry = str(folder)
    sys.path.append(entry)
    try:
        yield
    finally:
        sys.path.remove(entry)


@contextlib.contextmanager
def _blamed_on(what: str) -> Iterator[None]:
    """Say whose code raised an error; those of neotta speak for themselves."""
    try:
        yield
    except NeottaError:
        raise
    except Exception as error:
        raise ModelLoadError(f"py:{what} raised {type(error).__name__}: {error}") from error

"""The registry of methods: neotta's own, those of installed packages, and those of a user's file."""

from __future__ import annotations

import inspect
import pkgutil
from pathlib import Path
from typing import Any, TypeVar

from neotta._registry import Registry
from neotta.adapters.base import Adapter, EmbeddingAdapter
from neotta.adapters.declaration import Declaration
from neotta.errors import CodeError, UnknownMethodError
from neotta.options import Options

AnyAdapter = Adapter[Any]
Kind = TypeVar("Kind", bound=type[AnyAdapter])


def _check(name: str, kind: Any) -> None:
    if not (isinstance(kind, type) and issubclass(kind, Adapter)):
        raise CodeError(f"the method {name!r} is {kind!r}: expected a subclass of neotta.Adapter")
    problem = _problem(name, kind)
    if problem:
        raise CodeError(f"{kind.__qualname__} cannot be the method {name!r}: {problem}")


def _problem(name: str, kind: type[AnyAdapter]) -> str:
    missing = [each for each in ("name", "title", "declaration") if not hasattr(kind, each)]
    if missing:
        return f"it has no {missing[0]!r}"
    if not isinstance(kind.declaration, Declaration):
        return f"its declaration is {kind.declaration!r}: write Declaration(needs=..., ...)"
    if not (isinstance(kind.Options, type) and issubclass(kind.Options, Options)):
        return f"its Options are {kind.Options!r}: expected a subclass of neotta.adapters.Options"
    if inspect.isabstract(kind):
        return f"it does not implement {', '.join(sorted(kind.__abstractmethods__))}"
    if kind.name != kind.name.lower() or set(kind.name) & set(" +:@,"):
        return f"its name {kind.name!r} is not in lower case, or has a space, plus, colon, comma or at sign"
    if not name.startswith("py:") and kind.name != name:
        return f"its name is {kind.name!r}"
    if (kind.declaration.needs == "embeddings") != issubclass(kind, EmbeddingAdapter):
        return (
            f"it declares needs={kind.declaration.needs!r}, which an EmbeddingAdapter, and no other, has as embeddings"
        )
    has = kind.declaration
    needed = ["source"] * bool(has.source_images) + ["mean", "std"] * has.normalisation + ["seed"] * has.random
    if "seed" in kind.Options.model_fields and not has.random:
        return "it has an option 'seed', which only runs of methods that declare random=True set"
    absent = [option for option in needed if option not in kind.Options.model_fields]
    return f"its declaration asks for an option {absent[0]!r}, which it does not have" if absent else ""


METHODS: Registry[type[AnyAdapter]] = Registry(
    "method",
    group="neotta.methods",
    builtin=tuple(f"{__package__}.{name}" for _, name, _ in pkgutil.iter_modules([str(Path(__file__).parent)])),
    check=_check,
    error=UnknownMethodError,
)


def register(adapter: Kind) -> Kind:
    """Make a method known by its `name`; use it as a class decorator.

    Raises:
        ValueError: The name is taken.
        CodeError: The class is not a method, or its declaration does not fit it.
    """
    METHODS.register(getattr(adapter, "name", "?"), adapter)
    return adapter

"""Methods by name."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Collection, Sequence
from typing import Any, TypeVar

from torch import Tensor, nn

from neotta.adapters.base import Adapter, Classes
from neotta.adapters.declaration import DataFacts
from neotta.errors import InputError, OptionError, UnknownMethodError

AnyAdapter = Adapter[Any]
Kind = TypeVar("Kind", bound=type[AnyAdapter])

_METHODS: dict[str, type[AnyAdapter]] = {}


def register(adapter: Kind) -> Kind:
    """Make a method known by its `name`; use it as a class decorator.

    Raises:
        ValueError: The name is taken, or is not in lower case, or holds a space or a plus.
    """
    name = adapter.name
    if name != name.lower() or " " in name or "+" in name:
        raise ValueError(f"a method's name is in lower case without spaces and plus signs, got {name!r}")
    if name in _METHODS and _METHODS[name] is not adapter:
        raise ValueError(f"there is a method {name!r} already: {_METHODS[name].__qualname__}")
    _METHODS[name] = adapter
    return adapter


def methods() -> dict[str, type[AnyAdapter]]:
    """All methods by name: `none` first, then the NEO family, then the others."""
    import neotta.adapters as package

    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    first = ["none", "neo", "neo-continual", "neo-mse", "neo-bn"]
    order = [name for name in first if name in _METHODS] + sorted(set(_METHODS) - set(first))
    return {name: _METHODS[name] for name in order}


def find(method: str | Sequence[str]) -> type[AnyAdapter]:
    """The class of a method, or of a stack of methods: `"neo+lame"` or `["neo", "lame"]`.

    Raises:
        UnknownMethodError: There is no such method.
        OptionError: These methods cannot be stacked.
    """
    from neotta.adapters.stack import stack

    names = method.split("+") if isinstance(method, str) else method
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise OptionError(f"a method is given by its name, or two as a list of names, got {method!r}")
    known = methods()
    for name in names:
        if name not in known:
            raise UnknownMethodError(name, known)
    return known[names[0]] if len(names) == 1 else stack(tuple(known[name] for name in names))


def data_options(method: str | Sequence[str], facts: DataFacts, given: Collection[str] = ()) -> dict[str, Any]:
    """The options of a method that follow from the data, as its declaration says.

    Args:
        method: The name of a method, or a stack.
        facts: What is known of the data.
        given: Names of options that the caller sets; they are left out.
    """
    return find(method).declaration.data_options(facts, given)


def create(
    method: str | Sequence[str],
    model: nn.Module,
    *,
    preset: str = "paper",
    classes: Classes | None = None,
    head: str | None = None,
    example: Tensor | None = None,
    **options: Any,
) -> AnyAdapter:
    """Wrap a method round a model.

    Args:
        method: The name of a method; `neotta.methods()` lists them. Or two of them to stack, as `["neo", "lame"]`
            or `"neo+lame"`: the first re-centers the embeddings, the second reads what comes out.
        model: A classifier. It is used, never changed for longer than a call.
        preset: `"paper"` for the options of the NEO paper, `"original"` for those of the method's own publication;
            where nothing differs, they are the same. Some methods have more, see `neotta methods NAME`.
        classes: Keep only these classes (indices, or a mask over all) before anything else happens.
        head: The name of the linear head, if it cannot be found.
        example: A batch of images to run the model with, if that is what it takes to find the head.
        **options: The method's options, on top of the preset. A stack takes those of both its methods.

    Raises:
        UnknownMethodError: There is no such method.
        OptionError: An option is unknown or wrong, or the methods cannot be stacked.
        InputError: The model is no module.
        UnsupportedModelError: The method cannot work on this model.
    """
    kind = find(method)
    if not isinstance(model, nn.Module):
        raise InputError(f"the model is a torch.nn.Module, got {type(model).__name__}")
    return kind(model, kind.Options.make(kind.name, options, preset), classes=classes, head=head, example=example)

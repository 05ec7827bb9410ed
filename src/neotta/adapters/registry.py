"""Methods by name: finding, listing and creating them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from torch import nn

from neotta.adapters._inputs import Classes
from neotta.adapters._methods import METHODS, AnyAdapter, register
from neotta.adapters.declaration import DataFacts
from neotta.adapters.neo import NEOAdapter
from neotta.adapters.rdumb import RDumb, around
from neotta.adapters.stack import stack
from neotta.errors import InputError, OptionError
from neotta.neo.model_inputs import Inputs
from neotta.neo.surgery import one_at_a_time

__all__ = [
    "METHODS",
    "AnyAdapter",
    "create",
    "data_options",
    "find",
    "methods",
    "names",
    "own_title",
    "register",
    "revision_of",
]


def methods() -> dict[str, type[AnyAdapter]]:
    """All methods by name: `none` first, then the NEO family, then the others.

    A plug-in that cannot be loaded is left out with a warning.
    """
    known = METHODS.available()

    def place(name: str) -> tuple[bool, bool, str]:
        family = issubclass(known[name], NEOAdapter)
        return name != "none", not family, "" if family else name

    return {name: known[name] for name in sorted(known, key=place)}


def names(method: str | Sequence[str]) -> list[str]:
    """The methods of a stack, or the one method: `"neo+lame"` is `["neo", "lame"]`."""
    if isinstance(method, str):
        first, plus, rest = method.partition("+")
        if method.startswith("py:") or not plus:  # a path may have a plus
            return [method]
        return [first, rest] if rest.startswith("py:") else method.split("+")
    if not isinstance(method, Sequence) or not all(isinstance(name, str) for name in method):
        raise OptionError(f"a method is given by its name, or two as a list of names, got {method!r}")
    return list(method)


def find(method: str | Sequence[str]) -> type[AnyAdapter]:
    """The class of a method, or of a stack of methods: `"neo+lame"` or `["neo", "lame"]`.

    `"rdumb+..."` is a method, or a stack, with restarts.

    Args:
        method: Names that are registered or announced by an installed package, or `py:path/to/file.py:Class`.

    Raises:
        UnknownMethodError: There is no such method.
        CodeError: The code of a method is missing, raises an error, or is not a method.
        OptionError: These methods cannot be stacked.
    """
    kinds = tuple(METHODS.find(name) for name in names(method))
    if len(kinds) > 1 and kinds[0] is RDumb:
        return around(kinds[1] if len(kinds) == 2 else stack(kinds[1:]))
    return kinds[0] if len(kinds) == 1 else stack(kinds)


def revision_of(method: str | Sequence[str]) -> str:
    """The revision of a method, or of the methods of a stack: `"1"`, `"1+2"`."""
    return "+".join(str(METHODS.find(name).revision) for name in names(method))


def own_title(method: str | Sequence[str]) -> str | None:
    """What tables call a method that is not of neotta, or a stack with one; None for the others, which have a name."""
    parts = []
    for name in names(method):
        kind = METHODS.find(name)
        own = not kind.__module__.startswith("neotta.")
        parts.append(vars(kind).get("title", kind.__name__) if own else name)
    return None if parts == names(method) else "+".join(parts)


def data_options(method: str | Sequence[str], facts: DataFacts, chosen: Collection[str] = ()) -> dict[str, Any]:
    """The options of a method that follow from the data, as its declaration says.

    Args:
        method: The name of a method, or a stack.
        facts: What is known of the data.
        chosen: Names of options that the caller sets; they are left out.
    """
    return find(method).declaration.data_options(facts, chosen)


@one_at_a_time
def create(
    method: str | Sequence[str],
    model: nn.Module,
    *,
    preset: str | None = None,
    classes: Classes | None = None,
    head: str | None = None,
    example: Inputs | None = None,
    **options: Any,
) -> AnyAdapter:
    """Wrap a model in a method.

    Args:
        method: The name of a method; `neotta.methods()` lists them. Or `py:path/to/file.py:Class` for one of your
            own. Or two to stack, as `["neo", "lame"]` or `"neo+lame"`: the first re-centers the embeddings, the
            second reads the re-centered ones.
        model: A classifier. It is used, never changed for longer than a call.
        preset: `"paper"` for the options of the NEO paper, `"original"` for those of the method's own publication;
            some methods have more, see `neotta methods NAME`. The defaults are the paper's, except where those do harm
            (`neo-bn`).
        classes: Keep only these classes (indices, or a mask over all) before anything else happens.
        head: The name of the linear head, if it cannot be found.
        example: A batch of images to run the model with, if that is what it takes to find the head.
        **options: The method's options, on top of the preset. A stack takes those of both its methods.

    Raises:
        UnknownMethodError: There is no such method.
        CodeError: The code of a method is missing, raises an error, or is not a method.
        OptionError: An option is unknown or wrong, or the methods cannot be stacked.
        InputError: The model is not a module.
        UnsupportedModelError: The method cannot work on this model.
    """
    kind = find(method)
    if not isinstance(model, nn.Module):
        raise InputError(f"expected a torch.nn.Module, got {type(model).__name__}")
    return kind(model, kind.Options.make(kind.name, options, preset), classes=classes, head=head, example=example)

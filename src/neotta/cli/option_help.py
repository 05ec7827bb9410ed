"""What a method's options take and mean, in words, from their fields."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from neotta.options import Options

WORDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
PLAIN: dict[Any, str] = {
    float: "number",
    int: "whole number",
    bool: "True or False",
    str: "text",
    type(None): "None",
}


def takes(field: FieldInfo) -> str:
    """What values an option takes: `"adam" or "sgd"`, `number, at least 0`."""
    return _values(field.annotation, field.metadata)


def _values(kind: Any, constraints: Sequence[Any] = ()) -> str:
    origin, inside = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _values(inside[0], [*inside[1:], *constraints])
    if origin is Literal:
        return " or ".join(_shown(value) for value in inside)
    if origin in (Union, types.UnionType):
        return " or ".join(_values(each, constraints) for each in inside)
    if origin is tuple and inside[-1] is Ellipsis:
        return f"list of ({_values(inside[0])})"
    if origin is tuple:
        return f"({'; '.join(_values(each) for each in inside)})"
    if origin is Callable:
        return "function"
    return ", ".join([PLAIN.get(kind, getattr(kind, "__name__", str(kind)).lower()), *_bounds(constraints)])


def _bounds(constraints: Sequence[Any]) -> list[str]:
    flat = [part for each in constraints for part in getattr(each, "metadata", [each])]  # `Field` holds several
    return [
        f"{word} {getattr(each, name)}"
        for each in flat
        for name, word in WORDS.items()
        if getattr(each, name, None) is not None
    ]


def default(field: FieldInfo) -> str:
    """The default, as it is written in Python."""
    return _shown(field.default)


def _shown(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def changes(options: type[Options], name: str) -> list[str]:
    """What presets make of an option: `1e-3 in "original"`."""
    return [f'{_shown(preset[name])} in "{title}"' for title, preset in options.presets.items() if name in preset]

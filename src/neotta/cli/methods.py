"""`neotta methods`: what there is to choose from."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import typer

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo
    from rich.console import Console
    from rich.table import Table

    from neotta.adapters.declaration import Declaration
    from neotta.options import Options


def methods(
    name: Annotated[str | None, typer.Argument(help="Show one method with its options.")] = None,
    table: Annotated[bool, typer.Option("--table", help="Compare what each method needs, as the paper does.")] = False,
) -> None:
    """List the methods, or show one with what it needs and its options.

    Examples:
      neotta methods tent
      neotta methods --table
    """
    from neotta.adapters.registry import find
    from neotta.adapters.registry import methods as known
    from neotta.cli.console import Console, next_step

    kinds = known() if name is None else {name: find(name)}
    console = Console(highlight=False, markup=False)
    if table:
        console.print(_comparison(kinds))
        console.print(
            "FTTA: no source data. HPF: free of hyperparameters. OF: free of optimisation. BI: independent of the "
            "batch size. BF: free of backpropagation. FP: forward passes per batch, at most."
        )
        for kind in kinds.values():
            has = kind.declaration
            if has.published_passes is not None:
                console.print(
                    f"* {kind.title}: {has.forward_passes} is what is counted; the paper prints {has.published_passes}."
                )
    elif name is not None:
        _describe(kinds[name], console)
    else:
        console.print(_list(kinds))
    next_step("neotta methods NAME   the options of one" if name is None else f"neotta run --methods none,{name}")


def _describe(kind: Any, console: Console) -> None:
    """All about one method; text rather than a table, so that nothing has to be cut off."""
    from neotta.options import EVERYWHERE

    console.print(f"{kind.title}: {inspect.cleandoc(kind.__doc__ or '')}\n\n{kind.paper}\n")
    console.print(f"Needs: {', '.join(_needs(kind.declaration))}\n")
    fields = kind.Options.model_fields
    console.print("Options:" if fields else "It has no options.", end="\n\n" if fields else "\n")
    for name, field in fields.items():
        show_option(console, name, field, changes(kind.Options, name))
    presets = [title for title in kind.Options.presets if title not in EVERYWHERE]
    if presets:
        console.print(f'\nPresets: "paper" (the default), "original", {", ".join(map(shown, presets))}')


def show_option(console: Console, name: str, field: FieldInfo, others: Sequence[str] = ()) -> None:
    """Print an option: its name, the values it takes, its default and what it means."""
    from rich.padding import Padding
    from rich.text import Text

    console.print(Text(name, style="bold"))
    values = "; ".join(["required" if field.is_required() else f"default {shown(field.default)}", *others])
    for line in filter(None, (f"{takes(field)} ({values})", field.description)):
        console.print(Padding(Text(line), (0, 0, 0, 4), expand=False))


def _needs(has: Declaration) -> Iterator[str]:
    yield f"{has.needs}{' as such, (B, 3, H, W)' if has.pixels else ''}"
    if has.gradients:
        yield "gradients"
    if has.batch_norm:
        yield "BatchNorm layers"
    if has.source_images:
        yield f"{has.source_images} source images (option source)"
    if has.normalisation:
        yield "the model's normalisation (options mean and std)"
    if has.random:
        yield "a seed (option seed; that of the run)"


def _list(kinds: dict[str, Any]) -> Table:
    from rich.text import Text

    rows = columns("method", "what it does", "published in")
    for name, kind in kinds.items():
        rows.add_row(name, Text(inspect.cleandoc(kind.__doc__ or "").split("\n")[0]), Text(kind.paper))
    return rows


def _comparison(kinds: dict[str, Any]) -> Table:
    rows = columns("method", "FTTA", "HPF", "OF", "BI", "BF", "FP")
    for kind in kinds.values():
        has = kind.declaration
        marks = (has.fully_test_time, has.hyperparameter_free, has.optimization_free, has.batch_size_independent,
                 has.backprop_free)  # fmt: skip
        passes = f"{has.forward_passes}{'' if has.published_passes is None else '*'}"
        rows.add_row(kind.title, *("✓" if mark else "✗" for mark in marks), passes)
    return rows


def columns(first: str, *others: str) -> Table:
    """A table with these columns."""
    from rich.table import Table

    rows = Table(box=None, header_style="bold", pad_edge=False)
    rows.add_column(first, no_wrap=True)  # names are there to be copied
    for title in others:
        rows.add_column(title)
    return rows


WORDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
PLAIN: dict[Any, str] = {float: "number", int: "whole number", bool: "True or False", str: "text", type(None): "None"}


def takes(field: FieldInfo) -> str:
    """What values an option takes: `"adam" or "sgd"`, `number, at least 0`."""
    return _values(field.annotation, field.metadata)


def _values(kind: Any, constraints: Sequence[Any] = ()) -> str:
    origin, inside = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _values(inside[0], [*inside[1:], *constraints])
    if origin is Literal:
        return " or ".join(shown(value) for value in inside)
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


def shown(value: Any) -> str:
    """A value as it is written in Python."""
    return f'"{value}"' if isinstance(value, str) else repr(value)


def changes(options: type[Options], name: str) -> list[str]:
    """What presets make of an option: `1e-3 in "original"`."""
    return [f'{shown(preset[name])} in "{title}"' for title, preset in options.presets.items() if name in preset]

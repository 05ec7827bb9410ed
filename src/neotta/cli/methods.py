"""`neotta methods`: what there is to choose from."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from neotta.adapters.declaration import Declaration


def methods(
    name: Annotated[str | None, typer.Argument(help="Show one method with its options.")] = None,
    table: Annotated[bool, typer.Option("--table", help="Show what each method needs, as the paper does.")] = False,
) -> None:
    """List the methods, or what each of them (or one) needs, or the options of one."""
    from neotta.adapters.registry import find
    from neotta.adapters.registry import methods as known
    from neotta.cli.console import Console

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
        console.print("\nThe options of one: neotta methods NAME. What each needs: neotta methods --table.")


def _describe(kind: Any, console: Console) -> None:
    """All about one method; text rather than a table, so that nothing has to be cut off."""
    from rich.padding import Padding
    from rich.text import Text

    from neotta.cli.option_help import changes, default, takes
    from neotta.options import EVERYWHERE

    console.print(f"{kind.title}: {inspect.cleandoc(kind.__doc__ or '')}\n\n{kind.paper}\n")
    console.print(f"Needs: {', '.join(_needs(kind.declaration))}\n")
    fields = kind.Options.model_fields
    console.print("Options:" if fields else "It has no options.", end="\n\n" if fields else "\n")
    for name, field in fields.items():
        console.print(Text(name, style="bold"))
        given = "; ".join([f"default {default(field)}", *changes(kind.Options, name)])
        for line in (f"{takes(field)} ({given})", field.description):
            if line:
                console.print(Padding(Text(line), (0, 0, 0, 4), expand=False))
    presets = [title for title in kind.Options.presets if title not in EVERYWHERE]
    if presets:
        console.print(f'\nPresets: "paper" (the default), "original", {", ".join(map(_quoted, presets))}')


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


def _quoted(text: str) -> str:
    return f'"{text}"'


def _list(kinds: dict[str, Any]) -> Table:
    from rich.text import Text

    rows = _table("method", "what it does", "published in")
    for name, kind in kinds.items():
        rows.add_row(name, Text(inspect.cleandoc(kind.__doc__ or "").split("\n")[0]), Text(kind.paper))
    return rows


def _comparison(kinds: dict[str, Any]) -> Table:
    rows = _table("method", "FTTA", "HPF", "OF", "BI", "BF", "FP")
    for kind in kinds.values():
        has = kind.declaration
        marks = (
            has.fully_test_time,
            has.hyperparameter_free,
            has.optimization_free,
            has.batch_size_independent,
            has.backprop_free,
        )
        rows.add_row(
            kind.title,
            *("✓" if mark else "✗" for mark in marks),
            f"{has.forward_passes}{'' if has.published_passes is None else '*'}",
        )
    return rows


def _table(first: str, *others: str) -> Table:
    from rich.table import Table

    rows = Table(box=None, header_style="bold", pad_edge=False)
    rows.add_column(first, no_wrap=True)  # names are there to be copied
    for title in others:
        rows.add_column(title)
    return rows

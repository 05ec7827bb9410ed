"""`neotta methods`: what there is to choose from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table


def methods(
    name: Annotated[str | None, typer.Argument(help="Show one method with its options.")] = None,
    table: Annotated[bool, typer.Option("--table", help="Show what each method needs, as the paper does.")] = False,
) -> None:
    """List the methods, or what each of them needs, or the options of one."""
    from rich.console import Console

    from neotta.adapters.registry import find
    from neotta.adapters.registry import methods as known

    kinds = known()
    console = Console()
    if name is not None:
        kind = find(name)
        console.print(f"[bold]{kind.title}[/bold]: {kind.__doc__}\n{kind.paper}\n")
        console.print(_options(kind))
    elif table:
        console.print(_comparison(kinds))
        console.print(
            "FTTA: no source data. HF: free of hyperparameters. OF: free of optimisation. BI: independent of the batch "
            "size. BF: free of backpropagation. FP: forward passes per batch, at most."
        )
    else:
        console.print(_list(kinds))
        console.print("\nThe options of one: neotta methods NAME. What each needs: neotta methods --table.")


def _list(kinds: dict[str, Any]) -> Table:
    rows = _table("method", "what it does", "published in")
    for name, kind in kinds.items():
        rows.add_row(name, (kind.__doc__ or "").split("\n")[0], kind.paper)
    return rows


def _comparison(kinds: dict[str, Any]) -> Table:
    rows = _table("method", "FTTA", "HF", "OF", "BI", "BF", "FP")
    for kind in kinds.values():
        has = kind.declaration
        marks = (
            has.fully_test_time,
            has.hyperparameter_free,
            has.optimization_free,
            has.batch_size_independent,
            has.backprop_free,
        )
        rows.add_row(kind.title, *("✓" if mark else "✗" for mark in marks), str(has.forward_passes))
    return rows


def _options(kind: Any) -> Table:
    rows = _table("option", "type", "default", *kind.Options.presets)
    for name, field in kind.Options.model_fields.items():
        type_ = getattr(field.annotation, "__name__", None) or str(field.annotation).replace("typing.", "")
        changed = [str(preset.get(name, "")) for preset in kind.Options.presets.values()]
        rows.add_row(name, type_, str(field.default), *changed)
    return rows


def _table(*columns: str) -> Table:
    from rich.table import Table

    return Table(*columns, box=None, header_style="bold", pad_edge=False)

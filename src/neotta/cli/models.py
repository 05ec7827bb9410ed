"""`neotta models`: what can be loaded by name."""

from __future__ import annotations

from typing import Annotated

import typer


def models(
    pattern: Annotated[
        str | None, typer.Argument(help="Also list timm's models whose name matches, such as 'vit_tiny*'.")
    ] = None,
) -> None:
    """List the models that can be loaded by name."""
    from rich.console import Console
    from rich.table import Table

    from neotta.models.catalog import available_models
    from neotta.models.load import FORMS

    console = Console()
    entries = available_models(pattern)
    if entries:
        table = Table("model", "input", "classes", "parameters", "accuracy", "weights", box=None)
        for entry in entries:
            table.add_row(
                entry.name,
                f"{entry.size[0]} x {entry.size[1]}",
                str(entry.classes),
                "" if entry.parameters is None else f"{entry.parameters:,}",
                "" if entry.accuracy is None else f"{entry.accuracy:.1%}",
                "published" if entry.published else "none",
            )
        console.print(table)
    else:
        console.print(f"No model matches {pattern!r}; try '*{pattern}*'.", markup=False)
    console.print("\nA model is named in one of these ways:")
    for form, meaning in FORMS.items():
        console.print(f"  {form:<27} {meaning}", markup=False, highlight=False)

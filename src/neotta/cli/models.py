"""`neotta models`: what can be loaded by name."""

from __future__ import annotations

from typing import Annotated

import typer


def models(
    pattern: Annotated[
        str | None, typer.Argument(help="Also list timm's models whose name matches, such as 'vit_tiny*'.")
    ] = None,
) -> None:
    """List the models that can be loaded by name.

    Examples:
      neotta models
      neotta models 'vit_tiny*'
    """
    from rich.table import Table

    from neotta.cli.console import Console, next_step
    from neotta.models.load import FORMS
    from neotta.models.packaged import available_models

    console = Console(highlight=False)
    entries = available_models(pattern)
    columns = {
        "model": [entry.name for entry in entries],
        "input": [f"{entry.size[0]}x{entry.size[1]}" for entry in entries],
        "classes": [str(entry.classes) for entry in entries],
        "parameters": [f"{entry.parameters:,}" if entry.parameters else "" for entry in entries],
        "accuracy": ["" if entry.accuracy is None else f"{entry.accuracy:.1%}" for entry in entries],
        "weights": [entry.weights for entry in entries],
    }
    table = Table(box=None)
    filled = {title: cells for title, cells in columns.items() if any(cells)}
    for title, cells in filled.items():
        table.add_column(title, no_wrap=True, min_width=max(map(len, cells)))  # names are there to be copied
    for row in zip(*filled.values(), strict=True):
        table.add_row(*row)
    if entries:
        console.print(table)
    else:
        console.print(f"No model matches {pattern!r}; try '*{pattern}*'.", markup=False)

    forms = Table.grid(padding=(0, 2))
    for form, meaning in FORMS.items():
        forms.add_row(form, meaning)
    console.print("\nA model is named in one of these ways:")
    console.print(forms)
    next_step("neotta check MODEL CLEAN_IMAGES   what adapting would cost it")

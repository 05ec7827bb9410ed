"""`neotta orders`: in which orders samples can come."""

from __future__ import annotations

from typing import Annotated

import typer


def orders(name: Annotated[str | None, typer.Argument(help="Show one order with its options.")] = None) -> None:
    """List the orders in which samples can come, or show one with its options.

    Examples:
      neotta orders
      neotta orders recurring
    """
    from neotta.cli.console import Console, next_step
    from neotta.cli.methods import columns, show_option
    from neotta.data.orders import ORDERS, find_order

    console = Console(highlight=False, markup=False)
    if name is None:
        table = columns("order", "what comes", "options")
        for order in ORDERS.values():
            table.add_row(order.name, order.about, ", ".join(order.options.model_fields))
        console.print(table)
        next_step("neotta run --order correlated:delta=0.1")
        return
    order = find_order(name)
    console.print(f"{name}: {order.about}\n")
    for option, field in order.options.model_fields.items():
        show_option(console, option, field)
    next_step(f"neotta run --order {name}")

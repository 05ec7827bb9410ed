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
    from neotta.errors import UnknownNameError
    from neotta.evaluate.orders import ORDERS

    known = {order.name: order for order in reversed(ORDERS.values())}  # the simplest of a name comes first
    console = Console(highlight=False, markup=False)
    if name is None:
        table = columns("order", "what comes", "options")
        for each in dict.fromkeys(order.name for order in ORDERS.values()):
            fields = known[each].options.model_fields.items()
            options = ", ".join(field.alias or option for option, field in fields)
            table.add_row(each, known[each].about, options)
        console.print(table)
        next_step("neotta run --order correlated:delta=0.1")
        return
    if name not in known:
        raise UnknownNameError("order", name, known)
    console.print(f"{name}: {known[name].about}\n")
    for option, field in known[name].options.model_fields.items():
        show_option(console, field.alias or option, field)
    next_step(f"neotta run --order {name}")

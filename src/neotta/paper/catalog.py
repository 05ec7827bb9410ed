"""All items by name, in the order of the report."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from functools import cache

import neotta.paper.items
from neotta.errors import OptionError
from neotta.paper.item import Item


@cache
def items() -> dict[str, Item]:
    """Every item by its name, found in the files beside this one."""
    found: list[Item] = []
    for _, name, _ in pkgutil.iter_modules(neotta.paper.items.__path__):
        module = importlib.import_module(f"{neotta.paper.items.__name__}.{name}")
        found += [item for item in vars(module).values() if isinstance(item, Item)]
    return {item.name: item for item in sorted(found, key=lambda item: item.order)}


def chosen(names: list[str]) -> list[Item]:
    """The items of these names; `all` for all of them.

    A name may be cut short where only one item begins so, and may say `table-` or `figure-` before it.

    Raises:
        OptionError: There is no such item; the message suggests the nearest.
    """
    found = dict.fromkeys(_resolve(name) for name in names if name != "all")
    return list(items().values()) if "all" in names else [items()[name] for name in found]


def _resolve(name: str) -> str:
    known = list(items())
    asked = name.lower().replace("_", "-").removeprefix("table-").removeprefix("figure-")
    asked = {"stacked-methods": "stacks"}.get(asked, asked)  # what it was called before
    possible = [asked] if asked in known else [each for each in known if each.startswith(asked)]
    if len(possible) == 1:
        return possible[0]
    if asked and possible:
        raise OptionError(f"the item {name!r} is ambiguous: it could be {', '.join(possible)}")
    near = difflib.get_close_matches(asked, known, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}?" if near else "see neotta paper --list"
    raise OptionError(f"the paper has no item {name!r}: {hint}")

"""All items, in the order of the report."""

from __future__ import annotations

import difflib
import importlib
from functools import cache

from neotta.errors import OptionError
from neotta.paper.item import Item

_FILES = (
    "methods",
    "tradeoff",
    "dimensions",
    "alignment",
    "corruptions",
    "gains",
    "calibration",
    "full",
    "samples",
    "classes",
    "continual",
    "cross_domain",
    "resources",
    "cnn",
    "batch_size",
    "alpha",
    "collapse",
    "few_samples",
    "continual_start",
    "stacks",
    "reliability",
)


@cache
def items() -> dict[str, Item]:
    """Every item by its name."""
    found: dict[str, Item] = {}
    for file in _FILES:
        module = importlib.import_module(f"neotta.paper.items.{file}")
        for kind in vars(module).values():
            if isinstance(kind, type) and issubclass(kind, Item) and kind.__module__ == module.__name__:
                found[kind.name] = kind()
    return found


def chosen(names: list[str]) -> list[Item]:
    """The items of these names; `all` for all of them.

    Raises:
        OptionError: There is no such item; the message suggests the nearest.
    """
    known = items()
    for name in names:
        if name != "all" and name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
            hint = f"did you mean {near[0]!r}?" if near else "see neotta paper --list"
            raise OptionError(f"the paper has no item {name!r} here: {hint}")
    return list(known.values()) if "all" in names else [known[name] for name in dict.fromkeys(names)]

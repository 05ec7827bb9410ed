"""The variants of NEO: their rules, which are their options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from neotta.errors import OptionError
from neotta.neo.mean import MeanRule, MovingMeanRule, NormsRule
from neotta.neo.state import Rule
from neotta.neo.stream import StreamRule

VARIANTS: dict[str, type[Rule]] = {
    "neo": MeanRule,
    "neo-continual": MovingMeanRule,
    "neo-mse": MeanRule,
    "neo-bn": NormsRule,
    "neo-stream": StreamRule,
}


def rule_of(method: str, values: Mapping[str, Any]) -> Rule:
    """The rule of a variant with these options, which are checked."""
    others = [name for name, kind in VARIANTS.items() if values.keys() <= kind.model_fields.keys()]
    wrong = [name for name in values if name not in VARIANTS[method].model_fields]
    if wrong and others:
        call = ", ".join(f"{name}={value!r}" for name, value in values.items())
        takes = ", ".join(VARIANTS[method].model_fields)
        raise OptionError(
            f"method {method!r} has no option {wrong[0]!r}: it takes {takes}. Name the method that has it: "
            f"neotta.adapt(model, {others[0]!r}, {call})"
        )
    return VARIANTS[method].make(method, values)

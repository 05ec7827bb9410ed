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
    rule = VARIANTS[method]
    if not values.keys() <= rule.model_fields.keys():
        wrong = next(name for name in values if name not in rule.model_fields)
        other = next((name for name, kind in VARIANTS.items() if values.keys() <= kind.model_fields.keys()), None)
        if other is not None:
            call = ", ".join(f"{name}={value!r}" for name, value in values.items())
            raise OptionError(
                f"method {method!r} has no option {wrong!r}: it takes {', '.join(rule.model_fields)}. Name the method "
                f"that has it: neotta.adapt(model, {other!r}, {call})"
            )
    return rule.make(method, values)

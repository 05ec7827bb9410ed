"""The methods of a plan: with their options, from text or from a table."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from neotta.errors import OptionError

OWN_CODE = re.compile(r"([^:@]+\+)?py:.+?:\w+")
"""The name of a method that is defined in a file or module, alone or at the end of a stack."""


class MethodPlan(BaseModel):
    """A method with its options; an option with a list of values is varied over them.

    Attributes:
        method: Its name, or a stack such as `"neo+lame"`.
        preset: `"paper"`, or what else the method offers.
        options: Values or lists of values by name.
        tuned: How the options were chosen, if they were (see `neotta.evaluate.tuning`).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: str
    preset: str = "paper"
    options: dict[str, Any] = {}
    tuned: dict[str, Any] | None = Field(default=None, exclude=True)

    @field_validator("options")
    @classmethod
    def _values(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name, given in value.items():
            if given == []:
                raise OptionError(f"the option {name!r} of a method has no value: its list is empty")
        return value

    @classmethod
    def parse(cls, text: str) -> MethodPlan:
        """Read `"tent"`, `"neo-continual:alpha=0.05|0.1,debias=true"`, `"sar@original"` or `"py:my.py:Mine:lr=0.1"`."""
        own = OWN_CODE.match(text.strip())
        start = own.end() if own else 0
        name, _, given = text.strip()[start:].partition(":")
        name, _, preset = name.partition("@")
        name = text.strip()[:start] + name
        options: dict[str, Any] = {}
        for part in filter(None, given.split(",")):
            option, equals, value = part.partition("=")
            if not equals:
                raise OptionError(f"method {text!r}: options are written name=value, got {part!r}")
            values = [parse_value(each) for each in value.split("|")]
            options[option.strip()] = values if len(values) > 1 else values[0]
        return cls(method=name, preset=preset or "paper", options=options)

    def grid(self) -> Iterator[dict[str, Any]]:
        """Every combination of the option values."""
        varied = [value if isinstance(value, list) else [value] for value in self.options.values()]
        for values in itertools.product(*varied):
            yield dict(zip(self.options, values, strict=True))


def split_methods(text: str) -> list[str]:
    """Split `"none,neo-continual:alpha=0.1|0.5,debias=true,tent"` into its three methods.

    Commas stand between methods and between the options of one: what reads `name=value` belongs to the method before.
    """
    methods: list[str] = []
    for piece in text.split(","):
        name, equals, _ = piece.partition("=")
        if methods and equals and ":" not in name:
            methods[-1] += f",{piece}"
        else:
            methods.append(piece)
    return methods


def method_entry(entry: Any) -> Any:
    """An entry of a plan as `MethodPlan` takes it: a name, or options beside the name."""
    if isinstance(entry, str):
        return MethodPlan.parse(entry)
    if isinstance(entry, Mapping) and "method" not in entry:
        raise OptionError(f"a method of the plan needs the entry 'method', its name: got {dict(entry)!r}")
    if isinstance(entry, Mapping) and "options" not in entry:
        known = {name: value for name, value in entry.items() if name in ("method", "preset")}
        return {**known, "options": {name: value for name, value in entry.items() if name not in known}}
    return entry


def parse_value(text: str) -> Any:
    """A number, a truth value, nothing, or a word."""
    words = {"true": True, "false": False, "none": None}
    text = text.strip()
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text

"""Typed, validated options of methods."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from neotta.errors import OptionError

EVERYWHERE = ("paper", "original")
"""Presets of every method: as in the NEO paper, and as in the method's own paper. They often agree."""

Self = TypeVar("Self", bound="Options")


def named(method: str) -> BeforeValidator:
    """Accept a single name for a list, and names prefixed with the method's own, as in recorded runs."""

    def unprefixed(value: Any) -> Any:
        names = [value] if isinstance(value, str) else value
        if not isinstance(names, (list, tuple)):
            return value
        return tuple(each.removeprefix(f"{method}_") if isinstance(each, str) else each for each in names)

    return BeforeValidator(unprefixed)


class Options(BaseModel):
    """Base class of the options of a method.

    A subclass declares each option as `Field(default, description=...)`; `neotta methods NAME` shows the description.
    Defaults are those of the NEO paper, unless they do harm; `presets` lists what the presets change.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, arbitrary_types_allowed=True, allow_inf_nan=False
    )

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    @classmethod
    def make(
        cls: type[Self], method: str, options: Mapping[str, Any], preset: str | None = None, *, kind: str = "method"
    ) -> Self:
        """Validate options given on top of a preset, or of the defaults; `kind` is what has them, for messages.

        Raises:
            OptionError: An option is unknown, of the wrong type, or out of range, or the preset is unknown.
        """
        known = list(dict.fromkeys([*EVERYWHERE, *cls.presets]))
        if preset is not None and preset not in known:
            raise OptionError(f"method {method!r} has no preset {preset!r}: it has {', '.join(known)}")
        options = {**cls.presets.get(preset or "", {}), **options}
        try:
            return cls.model_validate(options)
        except ValidationError as error:
            raise OptionError(cls._explain(f"{kind} {method!r}", options, error)) from None

    def given(self) -> dict[str, Any]:
        """All options by name."""
        return {name: getattr(self, name) for name in type(self).model_fields}

    @classmethod
    def _explain(cls, owner: str, options: Mapping[str, Any], error: ValidationError) -> str:
        errors = error.errors()
        name = str(errors[0]["loc"][0]) if errors[0]["loc"] else ""
        if errors[0]["type"] == "extra_forbidden":
            near = difflib.get_close_matches(name, cls.model_fields, n=1)
            known = ", ".join(cls.model_fields) or "no options"
            hint = f"did you mean {near[0]!r}?" if near else f"it takes {known}"
            return f"{owner} has no option {name!r}: {hint}"
        if errors[0]["type"] == "missing":
            return f"{owner} needs the option {name!r}"
        messages = [_message(each["msg"]) for each in errors if each["loc"][:1] == errors[0]["loc"][:1]]
        message = ", or ".join(dict.fromkeys(messages))  # one for each allowed type
        if not name:
            return f"{owner}: {message}"
        return f"option {name!r} of {owner} is {options[name]!r}: {message}"


def _message(text: str) -> str:
    text = text.removeprefix("Value error, ")
    return text[0].lower() + text[1:]

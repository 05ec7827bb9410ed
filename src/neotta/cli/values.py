"""What is written on the command line, as values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from neotta.errors import OptionError


def words(text: str | None) -> list[str] | None:
    """`a,b` as a list."""
    return None if text is None else [word.strip() for word in text.split(",") if word.strip()]


def numbers(name: str, text: str | None) -> int | list[int] | None:
    """`3` is a number, `3,5` and `3,` are lists."""
    if text is None:
        return None
    try:
        return int(text) if "," not in text else [int(word) for word in words(text) or []]
    except ValueError:
        raise OptionError(f"--{name} takes whole numbers with commas between them, got {text!r}") from None


def pairs(name: str, given: list[str] | None) -> dict[str, Any] | None:
    """`NAME=VALUE`, with numbers and truth values as such."""
    from neotta.evaluate.method_plan import parse_value

    if not given:
        return None
    found = [text.partition("=") for text in given]
    for text, (key, equals, _) in zip(given, found, strict=True):
        if not equals or not key:
            raise OptionError(f"--{name} takes NAME=VALUE, got {text!r}")
    return {key.strip(): parse_value(value) for key, _, value in found}


def model_options(
    checkpoint: str | None, num_classes: int | None, given: list[str] | None, *, allow_code: bool = False
) -> dict[str, Any]:
    """The options of a model that were given; `preprocess.resize=256` is an entry of the table `preprocess`.

    Raises:
        CodeError: An option would run code that comes with a model, and that is not allowed.
    """
    from neotta.evaluate.plan_code import check_code

    found: dict[str, Any] = {"checkpoint": checkpoint, "num_classes": num_classes}
    found = {name: value for name, value in found.items() if value is not None}
    for key, value in (pairs("model-option", given) or {}).items():
        table, _, name = key.rpartition(".")
        (found.setdefault(table, {}) if table else found)[name] = value
    check_code(found, "the option of the model", allowed=allow_code, typed=True)
    return found


def user_cache() -> Path:
    """The folder for embeddings in the user's cache."""
    from platformdirs import user_cache_path

    return user_cache_path("neotta", appauthor=False) / "embeddings"

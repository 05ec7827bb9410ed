"""Plans and studies in files: TOML or YAML read, TOML written."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from neotta.errors import DataError, OptionError, suggestion
from neotta.evaluate.method_plan import MethodPlan
from neotta.evaluate.plan import Plan


def read_config(path: str | os.PathLike[str], known: Collection[str] = tuple(Plan.model_fields)) -> dict[str, Any]:
    """Read the entries of a plan, or of something else, from a file; its ending says what it is.

    Args:
        path: The file.
        known: The entries it may hold.

    Raises:
        DataError: There is no such file, or its content does not match its ending.
        OptionError: It holds another entry.
    """
    path = Path(path)
    readers = {".toml": _toml, ".yaml": _yaml, ".yml": _yaml}
    if path.suffix.lower() not in readers:
        raise OptionError(f"{str(path)!r}: a configuration is a .toml, .yaml or .yml file")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise DataError(f"the configuration {str(path)!r} cannot be read: {reason}") from error
    try:
        found = readers[path.suffix.lower()](text)
    except ValueError as error:
        problem = " ".join(str(error).split())
        raise DataError(f"{str(path)!r} is not valid {path.suffix[1:].upper()}: {problem}") from error
    found = {} if found is None else found
    if not isinstance(found, dict):
        raise DataError(f"{str(path)!r} has to hold entries such as 'model', got a {type(found).__name__}")
    unknown = [str(name) for name in found if name not in known]
    if unknown:
        raise OptionError(f"{str(path)!r} has the unknown entry {unknown[0]!r}: {suggestion(unknown[0], known)}")
    return found


def write_config(plan: Plan) -> str:
    """A plan as TOML, all of it, defaults too; `read_config` gives the same plan back."""
    import tomli_w

    entries = {name: getattr(plan, name) for name in Plan.model_fields}
    entries["methods"] = [_shortest(method) for method in plan.methods]
    return tomli_w.dumps(_without_none(entries))


def _toml(text: str) -> Any:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return tomllib.loads(text)


def _yaml(text: str) -> Any:
    import re

    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """As everybody expects it: 1e-3 is a number."""

    number = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+.0123456789"))
    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _shortest(method: MethodPlan) -> Any:
    """A name alone, or a table; where an option is None, which TOML cannot say, one line of text."""
    if None in _flat(method.options.values()):
        options = ",".join(f"{name}={'|'.join(map(str, _flat([value])))}" for name, value in method.options.items())
        return f"{method.method}@{method.preset}:{options}"
    if not method.options and method.preset == "paper":
        return method.method
    preset = {} if method.preset == "paper" else {"preset": method.preset}
    return {"method": method.method, **preset, **method.options}


def _flat(values: Any) -> list[Any]:
    return [each for value in values for each in (value if isinstance(value, list) else [value])]


def _without_none(value: Any) -> Any:
    """TOML knows no null: what is None is left out."""
    if isinstance(value, Mapping):
        return {name: _without_none(entry) for name, entry in value.items() if entry is not None}
    return [_without_none(entry) for entry in value] if isinstance(value, (list, tuple)) else value

"""Plans and studies in files of TOML or YAML."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from neotta.errors import DataError, OptionError, suggestion


def read_config(path: str | os.PathLike[str], known: Collection[str]) -> dict[str, Any]:
    """Read entries from a file, none but the known ones; its ending says what it is."""
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
        entries = readers[path.suffix.lower()](text)
    except ValueError as error:
        problem = " ".join(str(error).split())
        raise DataError(f"{str(path)!r} is not valid {path.suffix[1:].upper()}: {problem}") from error
    entries = {} if entries is None else entries
    if not isinstance(entries, dict):
        raise DataError(f"{str(path)!r} has to hold entries such as 'model', got a {type(entries).__name__}")
    unknown = [str(name) for name in entries if name not in known]
    if unknown:
        raise OptionError(f"{str(path)!r} has the unknown entry {unknown[0]!r}: {suggestion(unknown[0], known)}")
    return entries


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

"""Plans, studies and settings in files of TOML."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from neotta.errors import DataError, OptionError, suggestion


def read_config(path: str | os.PathLike[str], known: Collection[str]) -> dict[str, Any]:
    """Read entries from a TOML file, none but the known ones."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    path = Path(path)
    if path.suffix.lower() != ".toml":
        raise OptionError(f"{str(path)!r}: a configuration is a .toml file")
    try:
        entries: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise DataError(f"the configuration {str(path)!r} cannot be read: {reason}") from error
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"{str(path)!r} is not valid TOML: {' '.join(str(error).split())}") from error
    unknown = [name for name in entries if name not in known]
    if unknown:
        raise OptionError(f"{str(path)!r} has the unknown entry {unknown[0]!r}: {suggestion(unknown[0], known)}")
    return entries

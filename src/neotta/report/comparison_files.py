"""Comparisons in several formats at once: as text, or as files beside each other."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from neotta._extras import need
from neotta._files import atomic
from neotta.errors import OptionError, suggestion

SUFFIXES = {"table": ".txt", "markdown": ".md", "latex": ".tex", "csv": ".csv", "parquet": ".parquet"}
"""What a comparison can be written as, and the suffix of its file."""
_ALIASES = {"md": "markdown", "tex": "latex", "txt": "table"}

Writers = Mapping[str, Callable[[], str | bytes]]
"""Makes the content of a file, by format."""


def chosen_formats(text: str) -> list[str]:
    """Read `md,latex,csv`.

    Raises:
        OptionError: There is no such format, or none is named.
    """
    found = []
    for word in filter(None, (each.strip().lower() for each in text.split(","))):
        name = _ALIASES.get(word, word)
        if name not in SUFFIXES:
            raise OptionError(f"a comparison has no format {word!r}: {suggestion(word, [*SUFFIXES, *_ALIASES])}")
        found.append(name)
    if not found:
        raise OptionError(f"--format takes one or more of {', '.join(SUFFIXES)}, with commas between them")
    return list(dict.fromkeys(found))


def targets(formats: Sequence[str], output: Path | None) -> dict[str, Path]:
    """The file of each format; none if a single one is to be printed.

    One format goes to the file itself, several to files of its name with a suffix for each.

    Raises:
        OptionError: What is asked for cannot be printed, and no file is named.
    """
    if output is None:
        if len(formats) > 1 or "parquet" in formats:
            what = "several formats need" if len(formats) > 1 else "Parquet needs"
            raise OptionError(f"{what} a file to go to: give --output NAME")
        return {}
    if len(formats) == 1:
        return {formats[0]: output}
    stem = output.with_suffix("") if output.suffix.lower() in SUFFIXES.values() else output
    return {name: stem.with_name(stem.name + SUFFIXES[name]) for name in formats}


def write_files(files: Mapping[str, Path], writers: Writers) -> None:
    """Write each format to its file; all are made before the first is written."""
    made = {path: writers[name]() for name, path in files.items()}
    for path, content in made.items():
        with atomic(path) as temporary:
            temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def parquet_bytes(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """A Parquet file of rows; None where there is no number.

    Raises:
        MissingExtraError: pyarrow is not installed.
    """
    purpose = "a comparison in Parquet"
    arrow, parquet = need("pyarrow", purpose), need("pyarrow.parquet", purpose)
    page = io.BytesIO()
    parquet.write_table(arrow.Table.from_pylist([dict(row) for row in rows]), page, compression="zstd")
    return page.getvalue()

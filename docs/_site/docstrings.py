"""Docstrings are Markdown; Sphinx reads reStructuredText."""

from __future__ import annotations

import re


def to_rst(app: object, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Convert a docstring in place: code blocks, code in backticks, and characters that mean something in RST."""
    converted: list[str] = []
    fenced = False
    for line in lines:
        indent = line[: len(line) - len(line.lstrip())]
        if line.lstrip().startswith("```"):
            fenced = not fenced
            language = line.strip().removeprefix("```") or "text"
            converted += [f"{indent}.. code-block:: {language}", ""] if fenced else [""]
        elif fenced:
            converted.append(f"    {line}")
        else:
            converted.append(_prose(line))
    lines[:] = converted


def _prose(line: str) -> str:
    """`code` becomes ``code``; elsewhere `*` and `|` are escaped, except at the start of a list item."""
    parts = re.split(r"(`[^`]+`)", line)
    return "".join(
        f"`{part}`"
        if part.startswith("`") and len(part) > 2
        else re.sub(r"(?<=\S)([*|_])|([*|])(?=\S)", r"\\\1\2", part)
        for part in parts
    )

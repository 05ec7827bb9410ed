"""Words for messages."""

from __future__ import annotations


def counted(number: int, thing: str) -> str:
    """`1 image`, `2,000 images`."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def printable(text: object) -> str:
    """Text for a terminal: control characters, which names from strangers may hold, are shown escaped."""
    if str(text).isprintable():
        return str(text)
    shown = (each if each.isprintable() or each in "\n\t" else ascii(each)[1:-1] for each in str(text))
    return "".join(shown)


def one_line(text: object) -> str:
    """Same as `printable`, with line breaks and tabs escaped as well: a name in a table or in a comment."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")

"""Words for messages."""

from __future__ import annotations


def counted(number: int, thing: str) -> str:
    """`1 image`, `2,000 images`."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"

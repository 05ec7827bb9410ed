"""The command line."""

from __future__ import annotations

from neotta.cli.main import main

__all__ = ["main"]

"""The command line."""

from __future__ import annotations

import sys

from neotta._extras import naming_the_extra
from neotta.errors import MissingExtraError


def main() -> None:
    """What the command `neotta` calls; it is installed with the core too, and then says what is missing."""
    try:
        with naming_the_extra("the command line"):
            from neotta.cli.app import run_app

            run_app()
    except MissingExtraError as error:
        print(f"neotta: {error}", file=sys.stderr)
        sys.exit(2)

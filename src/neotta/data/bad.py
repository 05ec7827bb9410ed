"""What is done with a file that cannot be read: it is skipped with a warning, and counted."""

from __future__ import annotations

import warnings
from collections.abc import Callable

from neotta.data.base import Image, ImageDataset
from neotta.errors import DataError


def try_read(dataset: ImageDataset, index: int, on_bad: Callable[[str, DataError], None]) -> Image | None:
    """Read one sample; if that fails, tell `on_bad` its id and the error, and return None."""
    try:
        return dataset.read(index)
    except DataError as error:
        on_bad(dataset.ids[index], error)
        return None


class BadSamples:
    """Counts samples that cannot be read, and warns of each; hand it to `try_read`.

    Attributes:
        count: How many there were.
        first: The first few, as (id, reason).
    """

    def __init__(self, *, keep: int = 10, warn: bool = True) -> None:
        self.count = 0
        self.first: list[tuple[str, str]] = []
        self.keep, self.warn = keep, warn

    def __call__(self, name: str, error: DataError) -> None:
        """Note one bad sample."""
        self.count += 1
        if len(self.first) < self.keep:
            self.first.append((name, str(error)))
        if self.warn:
            warnings.warn(f"sample {name!r} is skipped: {error}", stacklevel=3)

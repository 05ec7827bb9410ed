"""Datasets, corruptions and streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neotta._lazy import lazy

if TYPE_CHECKING:
    from neotta.data.base import ImageDataset
    from neotta.data.corrupted import CorruptedDataset
    from neotta.data.corrupted_copy import corrupt_folder
    from neotta.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, corrupt

__all__ = ["CORRUPTIONS", "EXTRA_CORRUPTIONS", "CorruptedDataset", "ImageDataset", "corrupt", "corrupt_folder"]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "CORRUPTIONS": "neotta.data.corruptions",
        "CorruptedDataset": "neotta.data.corrupted",
        "EXTRA_CORRUPTIONS": "neotta.data.corruptions",
        "ImageDataset": "neotta.data.base",
        "corrupt": "neotta.data.corruptions",
        "corrupt_folder": "neotta.data.corrupted_copy",
    },
)

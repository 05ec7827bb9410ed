"""Datasets, corruptions and streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neotta._lazy import lazy

if TYPE_CHECKING:
    from neotta.data.base import ImageDataset
    from neotta.data.corrupted import CorruptedDataset
    from neotta.data.corrupted_copy import corrupt_folder
    from neotta.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, corrupt
    from neotta.data.downloads import download
    from neotta.data.info import describe
    from neotta.data.opening import open_data
    from neotta.data.source import DataSource

__all__ = [
    "CORRUPTIONS",
    "EXTRA_CORRUPTIONS",
    "CorruptedDataset",
    "DataSource",
    "ImageDataset",
    "corrupt",
    "corrupt_folder",
    "describe",
    "download",
    "open_data",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "CORRUPTIONS": "neotta.data.corruptions",
        "CorruptedDataset": "neotta.data.corrupted",
        "DataSource": "neotta.data.source",
        "EXTRA_CORRUPTIONS": "neotta.data.corruptions",
        "ImageDataset": "neotta.data.base",
        "corrupt": "neotta.data.corruptions",
        "corrupt_folder": "neotta.data.corrupted_copy",
        "describe": "neotta.data.info",
        "download": "neotta.data.downloads",
        "open_data": "neotta.data.opening",
    },
)

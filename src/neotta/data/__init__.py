"""Datasets, corruptions and orders of samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neotta._extras import lazy

if TYPE_CHECKING:
    from neotta.data import orders
    from neotta.data.base import DataSource, ImageDataset, align
    from neotta.data.corrupted import CorruptedDataset, corrupt_folder
    from neotta.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, corrupt, register_corruption
    from neotta.data.downloads import download
    from neotta.data.handwritten import digits
    from neotta.data.info import describe
    from neotta.data.layouts import register_layout
    from neotta.data.layouts.arrays import ArrayDataset
    from neotta.data.layouts.files import FileDataset
    from neotta.data.loading import Batch, Loader
    from neotta.data.opening import open_data

__all__ = [
    "CORRUPTIONS",
    "EXTRA_CORRUPTIONS",
    "ArrayDataset",
    "Batch",
    "CorruptedDataset",
    "DataSource",
    "FileDataset",
    "ImageDataset",
    "Loader",
    "align",
    "corrupt",
    "corrupt_folder",
    "describe",
    "digits",
    "download",
    "open_data",
    "orders",
    "register_corruption",
    "register_layout",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "ArrayDataset": "neotta.data.layouts.arrays",
        "Batch": "neotta.data.loading",
        "CORRUPTIONS": "neotta.data.corruptions",
        "CorruptedDataset": "neotta.data.corrupted",
        "DataSource": "neotta.data.base",
        "EXTRA_CORRUPTIONS": "neotta.data.corruptions",
        "FileDataset": "neotta.data.layouts.files",
        "ImageDataset": "neotta.data.base",
        "Loader": "neotta.data.loading",
        "align": "neotta.data.base",
        "corrupt": "neotta.data.corruptions",
        "corrupt_folder": "neotta.data.corrupted",
        "describe": "neotta.data.info",
        "digits": "neotta.data.handwritten",
        "download": "neotta.data.downloads",
        "open_data": "neotta.data.opening",
        "register_corruption": "neotta.data.corruptions",
        "register_layout": "neotta.data.layouts",
        "orders": "neotta.data.orders",
    },
)

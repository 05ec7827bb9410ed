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
        "neotta.data.base": "DataSource ImageDataset align",
        "neotta.data.corrupted": "CorruptedDataset corrupt_folder",
        "neotta.data.corruptions": "CORRUPTIONS EXTRA_CORRUPTIONS corrupt register_corruption",
        "neotta.data.downloads": "download",
        "neotta.data.handwritten": "digits",
        "neotta.data.info": "describe",
        "neotta.data.layouts": "register_layout",
        "neotta.data.layouts.arrays": "ArrayDataset",
        "neotta.data.layouts.files": "FileDataset",
        "neotta.data.loading": "Batch Loader",
        "neotta.data.opening": "open_data",
        "neotta.data.orders": "orders",
    },
)

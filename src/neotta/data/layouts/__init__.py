"""The ways datasets lie on disk, in one table; its order is that in which a bare path is recognised."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from neotta.data.layouts import arrays, cifar, corrupted, folders, imagenet, parquet, tiny
from neotta.data.source import DataSource


@dataclass(frozen=True)
class Layout:
    """One way a dataset lies on disk."""

    name: str
    looks_like: Callable[[Path], bool]
    open: Callable[[Path], DataSource]


LAYOUTS = (
    Layout("npz", arrays.looks_like_npz, arrays.open_npz),
    Layout("cifar10-c", cifar.looks_like_cifar10_c, cifar.open_cifar10_c),
    Layout("cifar-10", cifar.looks_like_cifar10, cifar.open_cifar10),
    Layout("tiny-imagenet", tiny.looks_like_tiny_imagenet, tiny.open_tiny_imagenet),
    Layout("imagenet-c", corrupted.looks_like_imagenet_c, corrupted.open_imagenet_c),
    Layout("tiny-imagenet-c", corrupted.looks_like_tiny_imagenet_c, corrupted.open_tiny_imagenet_c),
    Layout("corrupted", corrupted.looks_like_corrupted, corrupted.open_corrupted),
    Layout("imagenet-r", imagenet.looks_like_imagenet_r, imagenet.open_imagenet_r),
    Layout("imagenet-sketch", imagenet.looks_like_imagenet_sketch, imagenet.open_imagenet_sketch),
    Layout("imagenet", imagenet.looks_like_imagenet, imagenet.open_imagenet),
    Layout("imagenet-v2", imagenet.looks_like_imagenet_v2, imagenet.open_imagenet_v2),
    Layout("parquet", parquet.looks_like_parquet, parquet.open_parquet),
    Layout("folder", folders.looks_like_folder, folders.open_folder),
    Layout("images", folders.looks_like_images, folders.open_images),
)

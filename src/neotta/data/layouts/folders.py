"""Anybody's images: a folder with a subfolder for each class, or a folder of images without labels."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from neotta.data.base import ImageDataset
from neotta.data.layouts.files import (
    SUFFIXES,
    FileDataset,
    class_folders,
    first_image,
    from_class_folders,
    list_images,
    sort_names,
    subfolders,
)
from neotta.data.source import DataSource, full_name
from neotta.errors import DataError

SPLITS = ("val", "valid", "validation", "test", "train")
"""Names that divide a dataset and are no classes; a subfolder called so is a domain."""


def looks_like_folder(root: Path) -> bool:
    """Images in subfolders, and none beside them."""
    if not root.is_dir() or _images_at_the_top(root):
        return False
    return any(first_image(root / name) for name in subfolders(root))


def open_folder(root: Path) -> DataSource:
    """`<class>/*`, or `<split>/<class>/*`; classes are numbered in sorted order of their folders."""
    splits = {name: root / name for name in SPLITS if _split(root / name)}
    if set(subfolders(root)) != set(splits):
        splits = {root.resolve().name: root}
    classes = tuple(sort_names({name for folder in splits.values() for name in subfolders(folder)}))
    if not classes:
        raise DataError(f"{str(root)!r} holds no class folders; for images without labels say images={root}")
    return DataSource("folder", root, tuple(splits), partial(_labelled, splits, classes), classes)


def _split(folder: Path) -> bool:
    return folder.is_dir() and bool(subfolders(folder)) and not _images_at_the_top(folder)


def _images_at_the_top(folder: Path) -> bool:
    return any(path.suffix.lower() in SUFFIXES and path.name[0] != "." for path in folder.iterdir())


def _labelled(splits: dict[str, Path], classes: tuple[str, ...], domain: str) -> ImageDataset:
    folder = splits[domain]
    return from_class_folders(
        folder, class_folders(folder, classes), domain=full_name("folder", domain), classes=classes
    )


def looks_like_images(root: Path) -> bool:
    """Any folder with an image in it."""
    return root.is_dir() and first_image(root) is not None


def open_images(root: Path) -> DataSource:
    """All images in the folder and below it; nothing is known of their classes."""
    domain = root.resolve().name
    return DataSource("images", root, (domain,), partial(_unlabelled, root))


def _unlabelled(root: Path, domain: str) -> ImageDataset:
    return FileDataset(root, list_images(root), domain=full_name("images", domain))

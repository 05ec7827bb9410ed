"""Tiny-ImageNet as it is published: validation labels in a text file, training images in class folders."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from neotta.data.base import ImageDataset
from neotta.data.layouts.files import (
    FileDataset,
    class_folders,
    from_class_folders,
    list_images,
    read_classes,
    read_text,
)
from neotta.data.source import DataSource, full_name
from neotta.errors import DataError

_ANNOTATIONS = "val_annotations.txt"


def looks_like_tiny_imagenet(root: Path) -> bool:
    """`wnids.txt` and the annotated validation images."""
    return (root / "wnids.txt").is_file() and (root / "val" / _ANNOTATIONS).is_file()


def open_tiny_imagenet(root: Path) -> DataSource:
    """`val/images/*.JPEG` with `val/val_annotations.txt`, and `train/<wnid>/images/*.JPEG` where it is there.

    Classes are in the order of `wnids.txt`. Models have orders of their own: see `neotta.data.align`.
    """
    classes = read_classes(root / "wnids.txt")
    domains = tuple(split for split in ("val", "train") if (root / split).is_dir())
    if not domains:
        raise DataError(f"{str(root)!r} holds neither val/ nor train/")
    return DataSource("tiny-imagenet", root, domains, partial(_open, root, classes), classes)


def _open(root: Path, classes: tuple[str, ...], split: str) -> ImageDataset:
    folder, domain = root / split, full_name("tiny-imagenet", split)
    if (folder / "images").is_dir():
        return _annotated(folder, classes, domain)
    return from_class_folders(folder, class_folders(folder, classes), domain=domain, classes=classes)


def _annotated(folder: Path, classes: tuple[str, ...], domain: str) -> ImageDataset:
    path = folder / _ANNOTATIONS
    wnid_of = _annotations(path)
    names = list_images(folder / "images")
    if set(names) != set(wnid_of):
        example = sorted(set(names) ^ set(wnid_of))[0]
        raise DataError(
            f"{str(path)!r} labels {len(wnid_of):,} images where the folder holds {len(names):,}; "
            f"{example!r} is only in one of them"
        )
    number = {name: index for index, name in enumerate(classes)}
    strange = sorted(set(wnid_of.values()) - set(classes))
    if strange:
        raise DataError(f"{str(path)!r} names classes that wnids.txt does not: {strange[:5]}")
    labels = np.array([number[wnid_of[name]] for name in names], dtype=np.int64)
    return FileDataset(folder / "images", names, domain=domain, labels=labels, classes=classes)


def _annotations(path: Path) -> dict[str, str]:
    """Image name to WordNet id, from lines of `name <tab> wnid <tab> box`."""
    wnid_of = {}
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        fields = line.split("\t")
        if len(fields) < 2:
            raise DataError(f"line {number} of {str(path)!r} is not `name <tab> class ...`: {line[:80]!r}")
        wnid_of[fields[0]] = fields[1]
    return wnid_of

"""CIFAR-100 as binary files."""

from __future__ import annotations

from functools import partial
from importlib.resources import files
from pathlib import Path

from neotta.data.base import ImageDataset
from neotta.data.layouts.arrays import ArrayDataset, check_labels, row_ids
from neotta.data.layouts.cifar_binary import PIXELS, read_binary
from neotta.data.source import DataSource, full_name
from neotta.errors import DataError

CLASSES = tuple((files("neotta") / "assets" / "cifar100_classes.txt").read_text(encoding="utf-8").split())
"""The fine labels, which are in alphabetical order."""
FILES = {"test": "test.bin", "train": "train.bin"}
_RECORD = 2 + PIXELS  # the coarse and the fine label, then the image


def looks_like_cifar100(root: Path) -> bool:
    """A binary file of the right size, or the pickled files: opening those raises an error that explains why."""
    sizes = [(root / name).stat().st_size for name in FILES.values() if (root / name).is_file()]
    return (bool(sizes) and all(size and size % _RECORD == 0 for size in sizes)) or _pickled(root)


def open_cifar100(root: Path) -> DataSource:
    """`train.bin` and `test.bin` of the binary version; labels are the 100 fine ones."""
    domains = tuple(split for split, name in FILES.items() if (root / name).is_file())
    if not domains and _pickled(root):
        raise DataError(
            f"{str(root)!r} holds pickled files, which can run any code when they are opened: "
            "get the binary version of CIFAR-100 (train.bin, test.bin)"
        )
    if not domains:
        raise DataError(f"{str(root)!r} holds neither train.bin nor test.bin")
    return DataSource("cifar-100", root, domains, partial(_records, root), CLASSES)


def _pickled(root: Path) -> bool:
    return all((root / name).is_file() for name in ("meta", "train", "test"))


def _records(root: Path, split: str) -> ImageDataset:
    path = root / FILES[split]
    images, labels = read_binary(path, 2, "CIFAR-100")
    return ArrayDataset(
        images,
        check_labels(labels, len(images), path, len(CLASSES)),
        domain=full_name("cifar-100", split),
        ids=row_ids(len(images)),
        classes=CLASSES,
    )

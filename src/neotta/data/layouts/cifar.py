"""CIFAR-10 as binary batches, and CIFAR-10-C and CIFAR-100-C as NumPy files."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from neotta.data.base import ImageDataset
from neotta.data.corruptions import SEVERITIES
from neotta.data.layouts.arrays import (
    ArrayDataset,
    RowsDataset,
    check_labels,
    load_array,
    load_images,
    looks_like_npz,
    open_npz,
    row_ids,
)
from neotta.data.layouts.cifar100 import CLASSES as CLASSES_100
from neotta.data.layouts.cifar_binary import read_binary
from neotta.data.layouts.corrupted import in_paper_order
from neotta.data.source import DataSource, full_name
from neotta.errors import DataError

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
BATCHES = {"train": "data_batch_*.bin", "test": "test_batch.bin"}


def looks_like_cifar10(root: Path) -> bool:
    """Binary batches, or pickled ones: opening those raises an error that explains why."""
    if not root.is_dir():
        return False
    return any(any(root.glob(pattern)) for pattern in BATCHES.values()) or _pickled(root)


def open_cifar10(root: Path) -> DataSource:
    """`data_batch_*.bin` and `test_batch.bin`, or a `.npz` file with `images` and `labels`."""
    if looks_like_npz(root):
        return open_npz(root, "cifar-10", CLASSES)
    domains = tuple(split for split, pattern in BATCHES.items() if any(root.glob(pattern)))
    if not domains and _pickled(root):
        raise DataError(
            f"the batches in {str(root)!r} are Python pickles, which can run any program when they are read: "
            "take the binary version instead (neotta data download cifar-10)"
        )
    if not domains:
        raise DataError(f"{str(root)!r} holds neither data_batch_*.bin nor test_batch.bin")
    return DataSource("cifar-10", root, domains, partial(_batches, root), CLASSES)


def _pickled(root: Path) -> bool:
    return (root / "data_batch_1").is_file() or (root / "test_batch").is_file()


def _batches(root: Path, split: str) -> ImageDataset:
    images, labels = [], []
    ids: list[str] = []
    for path in sorted(root.glob(BATCHES[split])):
        found, numbers = read_binary(path, 1, "CIFAR-10")
        images.append(found)
        labels.append(check_labels(numbers, len(found), path, len(CLASSES)))
        ids.extend(f"{path.stem}/{row}" for row in row_ids(len(found)))
    return ArrayDataset(
        np.concatenate(images),
        np.concatenate(labels),
        domain=full_name("cifar-10", split),
        ids=ids,
        classes=CLASSES,
    )


def looks_like_cifar10_c(root: Path) -> bool:
    """`labels.npy` and the images of at least one corruption."""
    return (root / "labels.npy").is_file() and any(_corruptions(root)) and not _has_hundred(root)


def looks_like_cifar100_c(root: Path) -> bool:
    """The same, with a label above 9."""
    return (root / "labels.npy").is_file() and any(_corruptions(root)) and _has_hundred(root)


def _has_hundred(root: Path) -> bool:
    try:
        return int(load_array(root / "labels.npy").max(initial=0)) >= len(CLASSES)
    except (DataError, ValueError, TypeError):
        return False


def open_cifar10_c(root: Path) -> DataSource:
    """`<corruption>.npy`, each with the five severities one after the other, and `labels.npy`."""
    return _open_corrupted(root, "cifar10-c", CLASSES)


def open_cifar100_c(root: Path) -> DataSource:
    """The same with the 100 fine labels of CIFAR-100."""
    return _open_corrupted(root, "cifar100-c", CLASSES_100)


def _open_corrupted(root: Path, layout: str, classes: tuple[str, ...]) -> DataSource:
    if not (root / "labels.npy").is_file():
        raise DataError(f"{str(root)!r} holds no labels.npy")
    corruptions = in_paper_order(_corruptions(root))
    if not corruptions:
        raise DataError(f"{str(root)!r} holds no <corruption>.npy beside labels.npy")
    domains = tuple(f"{name}/{severity}" for name in corruptions for severity in SEVERITIES)
    return DataSource(layout, root, domains, partial(_rows, root, layout, classes), classes)


def _corruptions(root: Path) -> list[str]:
    return [path.stem for path in root.glob("*.npy") if path.stem != "labels" and path.name[0] != "."]


def _rows(root: Path, layout: str, classes: tuple[str, ...], domain: str) -> ImageDataset:
    name, severity = domain.split("/")
    path = root / f"{name}.npy"
    count = len(load_images(path))
    if count % len(SEVERITIES):
        raise DataError(f"{str(path)!r} holds {count:,} images, not a multiple of {len(SEVERITIES)} severities")
    labels = check_labels(load_array(root / "labels.npy"), count, root / "labels.npy", len(classes))
    size = count // len(SEVERITIES)
    start = (int(severity) - 1) * size
    rows = slice(start, start + size)
    return RowsDataset(path, rows, labels[rows], domain=full_name(layout, domain), classes=classes)

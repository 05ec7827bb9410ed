"""CIFAR-10 and CIFAR-100 as binary files, and CIFAR-10-C and CIFAR-100-C as NumPy files."""

from __future__ import annotations

from functools import partial
from importlib.resources import files
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from neotta.data.base import DataSource, ImageDataset, full_name
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
from neotta.data.layouts.corrupted import in_paper_order
from neotta.errors import DataError

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CLASSES_100 = tuple((files("neotta") / "assets" / "cifar100_classes.txt").read_text(encoding="utf-8").split())
"""The fine labels of CIFAR-100, which are in alphabetical order."""
BATCHES = {"train": "data_batch_*.bin", "test": "test_batch.bin"}
FILES_100 = {"test": "test.bin", "train": "train.bin"}
PIXELS = 3 * 32 * 32
_PICKLED = "Python pickles, which can run any program when they are read: take the binary version instead"


def looks_like_cifar10(root: Path) -> bool:
    """Binary batches, or pickled ones: opening those raises an error that explains why."""
    if not root.is_dir():
        return False
    return any(any(root.glob(pattern)) for pattern in BATCHES.values()) or _pickled_10(root)


def open_cifar10(root: Path) -> DataSource:
    """`data_batch_*.bin` and `test_batch.bin`, or a `.npz` file with `images` and `labels`."""
    if looks_like_npz(root):
        return open_npz(root, "cifar-10", CLASSES)
    domains = tuple(split for split, pattern in BATCHES.items() if any(root.glob(pattern)))
    if not domains and _pickled_10(root):
        raise DataError(f"the batches in {str(root)!r} are {_PICKLED} (neotta data download cifar-10)")
    if not domains:
        raise DataError(f"{str(root)!r} holds neither data_batch_*.bin nor test_batch.bin")
    return DataSource("cifar-10", root, domains, partial(_open_10, root), CLASSES)


def _pickled_10(root: Path) -> bool:
    return (root / "data_batch_1").is_file() or (root / "test_batch").is_file()


def _open_10(root: Path, split: str) -> ImageDataset:
    images, labels = [], []
    ids: list[str] = []
    for path in sorted(root.glob(BATCHES[split])):
        pixels, numbers = _read_binary(path, 1, CLASSES)
        images.append(pixels)
        labels.append(numbers)
        ids.extend(f"{path.stem}/{row}" for row in row_ids(len(pixels)))
    domain = full_name("cifar-10", split)
    return ArrayDataset(np.concatenate(images), np.concatenate(labels), domain=domain, ids=ids, classes=CLASSES)


def looks_like_cifar100(root: Path) -> bool:
    """A binary file of the right size, or the pickled files: opening those raises an error that explains why."""
    sizes = [(root / name).stat().st_size for name in FILES_100.values() if (root / name).is_file()]
    return (bool(sizes) and all(size and size % (2 + PIXELS) == 0 for size in sizes)) or _pickled_100(root)


def open_cifar100(root: Path) -> DataSource:
    """`train.bin` and `test.bin` of the binary version; labels are the 100 fine ones."""
    domains = tuple(split for split, name in FILES_100.items() if (root / name).is_file())
    if not domains and _pickled_100(root):
        raise DataError(f"the files in {str(root)!r} are {_PICKLED} (train.bin, test.bin)")
    if not domains:
        raise DataError(f"{str(root)!r} holds neither train.bin nor test.bin")
    return DataSource("cifar-100", root, domains, partial(_open_100, root), CLASSES_100)


def _pickled_100(root: Path) -> bool:
    return all((root / name).is_file() for name in ("meta", "train", "test"))


def _open_100(root: Path, split: str) -> ImageDataset:
    images, labels = _read_binary(root / FILES_100[split], 2, CLASSES_100)
    return ArrayDataset(images, labels, domain=full_name("cifar-100", split), classes=CLASSES_100)


def _read_binary(path: Path, labels: int, classes: tuple[str, ...]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Read a file that has for each image its labels, one byte each, then the red, the green and the blue plane.

    Returns:
        Images, (N, 32, 32, 3), and the last of the labels of each, (N,).
    """
    content, size = np.fromfile(path, dtype=np.uint8), labels + PIXELS
    if content.size == 0 or content.size % size:
        raise DataError(
            f"{str(path)!r} has {content.size:,} bytes, not a multiple of {size}: it is truncated, "
            f"or not a binary file of CIFAR-{len(classes)}"
        )
    records = content.reshape(-1, size)
    images = records[:, labels:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return images, check_labels(records[:, labels - 1], len(images), path, len(classes))


def looks_like_cifar10_c(root: Path) -> bool:
    """`labels.npy` with labels up to 9, and the images of at least one corruption."""
    return (root / "labels.npy").is_file() and any(_corruptions(root)) and not _has_hundred(root)


def looks_like_cifar100_c(root: Path) -> bool:
    """`labels.npy` with a label above 9, and the images of at least one corruption."""
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
    """`<corruption>.npy` with five severities each, and `labels.npy` with the 100 fine labels of CIFAR-100."""
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

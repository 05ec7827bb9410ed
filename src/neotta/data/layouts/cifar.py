"""CIFAR-10 and CIFAR-100 as binary files, and CIFAR-10-C and CIFAR-100-C as NumPy files."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

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
PIXELS = 3 * 32 * 32


class Binary(NamedTuple):
    """How a binary version lies on disk."""

    files: Mapping[str, str]  # pattern of the files of each split
    labels: int  # bytes before the pixels of an image; the last one is the class
    classes: tuple[str, ...]
    pickled: tuple[str, ...]  # files of the version that is not read: Python pickles can run any program


BINARY = {
    "cifar-10": Binary({"train": "data_batch_*.bin", "test": "test_batch.bin"}, 1, CLASSES, ("data_batch_1",)),
    "cifar-100": Binary({"test": "test.bin", "train": "train.bin"}, 2, CLASSES_100, ("meta", "train", "test")),
}


def looks_like_binary(layout: str, root: Path) -> bool:
    """Files of the right size, or pickled ones: opening those raises an error that explains why."""
    known = BINARY[layout]
    sizes = [path.stat().st_size for pattern in known.files.values() for path in root.glob(pattern)]
    named = layout == "cifar-10"  # other files are called train.bin, too
    fits = bool(sizes) and (named or all(size and size % (known.labels + PIXELS) == 0 for size in sizes))
    return fits or _is_pickled(layout, root)


def open_binary(layout: str, root: Path) -> DataSource:
    """`data_batch_*.bin` and `test_batch.bin`, or `train.bin` and `test.bin` with the 100 fine labels; or `.npz`."""
    known = BINARY[layout]
    if looks_like_npz(root):
        return open_npz(root, layout, known.classes)
    domains = tuple(split for split, pattern in known.files.items() if any(root.glob(pattern)))
    names = " nor ".join(known.files.values())
    if not domains and _is_pickled(layout, root):
        raise DataError(
            f"the files in {str(root)!r} are Python pickles, which can run any program when they are read: take the "
            f"binary version instead ({names.replace(' nor ', ', ')}; neotta data download cifar-10)"
        )
    if not domains:
        raise DataError(f"{str(root)!r} holds neither {names}")
    return DataSource(layout, root, domains, partial(_open_binary, layout, root), known.classes)


def _is_pickled(layout: str, root: Path) -> bool:
    return root.is_dir() and all((root / name).is_file() for name in BINARY[layout].pickled)


def _open_binary(layout: str, root: Path, split: str) -> ImageDataset:
    known = BINARY[layout]
    paths = sorted(root.glob(known.files[split]))
    images, labels = zip(*(_read_binary(path, known.labels, known.classes) for path in paths), strict=True)
    ids = None
    if layout == "cifar-10":  # in several files
        ids = [f"{path.stem}/{row}" for path, some in zip(paths, images, strict=True) for row in row_ids(len(some))]
    return ArrayDataset(
        np.concatenate(images),
        np.concatenate(labels),
        domain=full_name(layout, split),
        ids=ids,
        classes=known.classes,
    )


def _read_binary(path: Path, labels: int, classes: tuple[str, ...]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Read the images, (N, 32, 32, 3), of a file, and the last of the labels of each, (N,).

    Each has its labels first, one byte each, then the red, the green and the blue plane.
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


CORRUPTED = {"cifar10-c": CLASSES, "cifar100-c": CLASSES_100}


def looks_like_corrupted(layout: str, root: Path) -> bool:
    """`labels.npy`, with a label above 9 if there are 100 classes, and the images of at least one corruption."""
    if not (root / "labels.npy").is_file() or not _corruptions(root):
        return False
    try:
        hundred = int(load_array(root / "labels.npy").max(initial=0)) >= len(CLASSES)
    except (DataError, ValueError, TypeError):
        hundred = False
    return hundred is (layout == "cifar100-c")


def open_corrupted(layout: str, root: Path) -> DataSource:
    """`<corruption>.npy`, each with the five severities one after the other, and `labels.npy`."""
    if not (root / "labels.npy").is_file():
        raise DataError(f"{str(root)!r} holds no labels.npy")
    corruptions, classes = in_paper_order(_corruptions(root)), CORRUPTED[layout]
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

"""Datasets whose samples are rows of one array: `.npy` files stay on disk, `.npz` files are read whole."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neotta.data.base import DataSource, Image, ImageDataset, full_name
from neotta.errors import DataError


class ArrayDataset(ImageDataset):
    """Rows of an array in memory.

    Args:
        images: (N, H, W, 3) uint8, or (N, H, W) for grey images.
        labels: (N,), or None.
        ids: One name per row; by default the row numbers.
    """

    in_memory = True

    def __init__(
        self,
        images: NDArray[np.uint8],
        labels: NDArray[np.int64] | None,
        *,
        domain: str,
        ids: list[str] | None = None,
        classes: tuple[str, ...] | None = None,
    ) -> None:
        self.images, self.labels, self.domain, self.classes = images, labels, domain, classes
        self.ids = row_ids(len(images)) if ids is None else ids

    def read(self, index: int) -> Image:
        """One row as (H, W, 3) uint8 RGB."""
        return rgb(self.images[index])


class RowsDataset(ArrayDataset):
    """Some rows of a `.npy` file, which is mapped into memory and never read whole."""

    def __init__(
        self, path: Path, rows: slice, labels: NDArray[np.int64], *, domain: str, classes: tuple[str, ...] | None
    ) -> None:
        self.path, self.rows = path, rows
        super().__init__(load_images(path)[rows], labels, domain=domain, classes=classes)

    def __getstate__(self) -> dict[str, Any]:  # a worker maps the file itself: pickling would copy it
        return {**self.__dict__, "images": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, images=load_images(state["path"])[state["rows"]])


def row_ids(count: int) -> list[str]:
    """Row numbers as ids, of equal length so that they sort as they stand."""
    return [f"{row:05d}" for row in range(count)]


def rgb(image: NDArray[np.uint8]) -> Image:
    """A copy of one row as (H, W, 3)."""
    return np.array(image if image.ndim == 3 else np.repeat(image[..., None], 3, axis=2))


def load_array(path: Path) -> NDArray[Any]:
    """Map a `.npy` file; one that holds pickled objects raises an error."""
    try:
        return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except (OSError, ValueError, EOFError, OverflowError, MemoryError) as error:
        raise DataError(f"{str(path)!r} cannot be read as an array of numbers: {error}") from error


def load_images(path: Path) -> NDArray[np.uint8]:
    """Map a `.npy` file of images, (N, H, W, 3) uint8."""
    return check_images(load_array(path), path)


def check_images(images: NDArray[Any], where: object) -> NDArray[np.uint8]:
    """Check that an array holds images: (N, H, W, 3) or (N, H, W), uint8."""
    if images.dtype != np.uint8 or not (images.ndim == 3 or (images.ndim == 4 and images.shape[3] == 3)):
        raise DataError(
            f"images in {str(where)!r} must be uint8 of shape (N, H, W, 3) or (N, H, W), "
            f"not {images.dtype} of shape {images.shape}"
        )
    return images


def check_labels(labels: NDArray[Any], count: int, where: object, classes: int | None = None) -> NDArray[np.int64]:
    """Check that there are as many labels as images, and that they are class numbers."""
    if labels.ndim != 1 or len(labels) != count:
        raise DataError(f"{str(where)!r} holds labels of shape {labels.shape} for {count:,} images")
    if labels.dtype.kind not in "iu":
        raise DataError(f"labels in {str(where)!r} must be integers, not {labels.dtype}")
    low, high = (int(labels.min()), int(labels.max())) if count else (0, 0)
    if low < 0 or (classes is not None and high >= classes):
        top = "" if classes is None else f" to {classes - 1}"
        raise DataError(f"labels in {str(where)!r} run from {low} to {high}; expected 0{top}")
    return labels.astype(np.int64)


def looks_like_npz(path: Path) -> bool:
    """Whether `path` is a `.npz` file."""
    return path.is_file() and path.suffix.lower() == ".npz"


def open_npz(path: Path, layout: str = "npz", classes: tuple[str, ...] | None = None) -> DataSource:
    """A `.npz` file with `images` and, where they are known, `labels` and `classes` (names)."""
    try:
        # The file is opened here because np.load leaves it open if it is not an archive.
        with path.open("rb") as handle, np.lib.npyio.NpzFile(handle, allow_pickle=False) as file:
            content = {name: file[name] for name in ("images", "labels", "classes") if name in file.files}
            names = ", ".join(file.files)
    except (OSError, ValueError, EOFError, OverflowError, MemoryError, zipfile.BadZipFile) as error:
        raise DataError(f"{str(path)!r} cannot be read as an .npz file of numbers: {error}") from error
    if "images" not in content:
        raise DataError(f"{str(path)!r} holds no array 'images', only: {names}")
    images = check_images(content["images"], path)
    if "classes" in content:
        classes = tuple(str(name) for name in content["classes"])
    labels = content.get("labels")
    if labels is not None:
        labels = check_labels(labels, len(images), path, None if classes is None else len(classes))
    dataset = ArrayDataset(images, labels, domain=full_name(layout, path.stem), classes=classes)
    return DataSource(layout, path, (path.stem,), {path.stem: dataset}.__getitem__, classes)

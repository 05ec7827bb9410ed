"""Datasets whose samples are image files: listing folders, and reading what was listed."""

from __future__ import annotations

import hashlib
import os
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neotta.data.base import DataSource, Image, ImageDataset, full_name
from neotta.data.decode import SUFFIXES, Encoded, Header, decode, probe
from neotta.errors import DataError


class EncodedDataset(ImageDataset):
    """Samples that are stored as image files, on their own or inside a larger one."""

    @abstractmethod
    def encoded(self, index: int) -> Encoded:
        """The image file of one sample: its path or its bytes."""

    def read(self, index: int) -> Image:
        """Decode one sample: (H, W, 3) uint8 RGB, upright."""
        return decode(self.encoded(index))

    def header(self, index: int) -> Header:
        """Format, mode and size of one sample, without decoding it."""
        return probe(self.encoded(index))


class FileDataset(EncodedDataset):
    """Image files below one folder; the ids are their paths below it, with forward slashes."""

    def __init__(
        self,
        root: Path,
        ids: Sequence[str],
        *,
        domain: str,
        labels: NDArray[np.int64] | None = None,
        classes: tuple[str, ...] | None = None,
    ) -> None:
        self.root, self.ids, self.domain, self.labels, self.classes = root, ids, domain, labels, classes

    def encoded(self, index: int) -> Path:
        """The path of one sample."""
        return self.root / self.ids[index]

    def digest(self, index: int) -> str:
        """A hash of the file."""
        return hashlib.sha256(self.encoded(index).read_bytes()).hexdigest()[:16]

    def stamp(self, index: int) -> str:
        """Size and time of the file."""
        facts = self.encoded(index).stat()
        return f"{facts.st_size}-{facts.st_mtime_ns}"


def folder_source(
    layout: str, root: Path, folders: Mapping[str, Path], classes: tuple[str, ...] | None, **more: Any
) -> DataSource:
    """A source with one folder for each domain: of class folders, or, without classes, of any images."""
    return DataSource(layout, root, tuple(folders), partial(_open_folder, layout, folders, classes), classes, **more)


def _open_folder(layout: str, folders: Mapping[str, Path], classes: tuple[str, ...] | None, domain: str) -> FileDataset:
    folder, name = folders[domain], full_name(layout, domain)
    if classes is None:
        return FileDataset(folder, list_images(folder), domain=name)
    return from_class_folders(folder, class_folders(folder, classes), domain=name, classes=classes)


def from_class_folders(
    root: Path, label_of: Mapping[str, int], *, domain: str, classes: tuple[str, ...] | None
) -> FileDataset:
    """All images below the class folders of `root`, class by class; `label_of` has the label of each folder."""
    ids: list[str] = []
    labels: list[int] = []
    for folder, label in sorted(label_of.items(), key=lambda item: item[1]):
        names = list_images(root / folder)
        ids.extend(f"{folder}/{name}" for name in names)
        labels.extend([label] * len(names))
    return FileDataset(root, ids, domain=domain, labels=np.array(labels, dtype=np.int64), classes=classes)


def list_images(folder: Path) -> list[str]:
    """The visible images in `folder` and below: sorted relative paths with forward slashes."""
    names = sorted(_walk(str(folder), "", frozenset()))
    _check_text(names, folder, "file")
    return names


def _check_text(names: list[str], folder: Path, kind: str) -> None:
    try:
        "\n".join(names).encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"folder {str(folder)!r} holds a {kind} whose name is not valid UTF-8: rename it, "
            "or the sample would have another id on another machine"
        ) from error


def _walk(folder: str, prefix: str, above: frozenset[tuple[int, int]]) -> Iterator[str]:
    try:
        status = os.stat(folder)  # noqa: PTH116  (strings are several times faster here than Path)
        here = (status.st_dev, status.st_ino)
        if here in above:  # a link that leads back up
            return
        with os.scandir(folder) as entries:
            for entry in entries:
                if _hidden(entry.name):
                    continue
                if entry.is_dir():
                    yield from _walk(entry.path, f"{prefix}{entry.name}/", above | {here})
                elif os.path.splitext(entry.name)[1].lower() in SUFFIXES and entry.is_file():  # noqa: PTH122
                    yield prefix + entry.name
    except OSError as error:
        raise DataError(f"folder {folder!r} cannot be listed: {error.strerror}") from error


def subfolders(folder: Path) -> list[str]:
    """Names of the visible folders in `folder`, sorted as `sort_names` does."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if not _hidden(entry.name) and entry.is_dir()]
    except OSError as error:
        raise DataError(f"folder {str(folder)!r} cannot be listed: {error.strerror}") from error
    _check_text(names, folder, "folder")
    return sort_names(names)


def sort_names(names: Iterable[str]) -> list[str]:
    """Sort folders: as numbers if all are numbers, else as text."""
    names = list(names)
    numeric = all(name.isascii() and name.isdigit() for name in names)
    return sorted(names, key=lambda name: (int(name) if numeric else 0, name))


def class_folders(folder: Path, classes: Sequence[str]) -> dict[str, int]:
    """The class folders in `folder` and their labels."""
    number = {name: index for index, name in enumerate(classes)}
    names = subfolders(folder)
    if not names:
        raise DataError(f"{str(folder)!r} holds no class folders such as {classes[0]!r}")
    strange = [name for name in names if name not in number]
    if strange:
        raise DataError(
            f"{str(folder)!r} holds folders that are none of the {len(classes)} classes: "
            f"{', '.join(strange[:5])}{', ...' if len(strange) > 5 else ''} ({len(strange)} of {len(names)}): "
            "move them away, or say which layout it is with LAYOUT=PATH"
        )
    return {name: number[name] for name in names}


def read_classes(path: Path) -> tuple[str, ...]:
    """The classes that a text file lists, such as `wnids.txt`."""
    classes = tuple(read_text(path).split())
    if not classes or len(set(classes)) != len(classes):
        raise DataError(f"{str(path)!r} must name each class once")
    return classes


def read_text(path: Path) -> str:
    """The content of a text file in UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{str(path)!r} cannot be read: {error}") from error


def first_image(folder: Path) -> Path | None:
    """Any image in `folder` or below."""
    name = next(_walk(str(folder), "", frozenset()), None)
    return None if name is None else folder / name


def _hidden(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"

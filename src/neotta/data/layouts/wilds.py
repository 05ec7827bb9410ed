"""Folders of WILDS: Camelyon17 and iWildCam, described by `metadata.csv`."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from neotta.data.layouts.files import FileDataset
from neotta.data.source import DataSource, full_name
from neotta.errors import DataError

Row = dict[str, str]
CAMELYON_COLUMNS = {"patient", "node", "x_coord", "y_coord", "tumor", "center"}
IWILDCAM_COLUMNS = {"filename", "y", "split", "location_remapped"}
IWILDCAM_SPLITS = ("test", "val", "id_test", "id_val", "train")


class _Kind(NamedTuple):
    """How a table describes samples.

    Attributes:
        layout: The name of the layout.
        columns: Columns that the table must have.
        path: The image of a row.
        label: Its label.
        domain: Its domain.
    """

    layout: str
    columns: set[str]
    path: Callable[[Row], str]
    label: Callable[[Row], int]
    domain: Callable[[Row], str]


def _patch(row: Row) -> str:
    place = f"patient_{row['patient'].zfill(3)}_node_{row['node']}"
    return f"patches/{place}/patch_{place}_x_{row['x_coord']}_y_{row['y_coord']}.png"


CAMELYON = _Kind(
    "camelyon17", CAMELYON_COLUMNS, _patch, lambda row: int(row["tumor"]), lambda row: f"center-{row['center']}"
)
IWILDCAM = _Kind(
    "iwildcam",
    IWILDCAM_COLUMNS,
    lambda row: f"train/{row['filename']}",
    lambda row: int(float(row["y"])),
    lambda row: row["split"],
)


def _columns(root: Path) -> set[str]:
    table = root / "metadata.csv"
    if not table.is_file():
        return set()
    try:
        with table.open(encoding="utf-8", newline="") as file:
            return set(next(csv.reader(file), []))
    except (OSError, UnicodeDecodeError, csv.Error):
        return set()


def looks_like_camelyon17(root: Path) -> bool:
    """A table with the columns of Camelyon17, and patches."""
    return _columns(root) >= CAMELYON_COLUMNS and (root / "patches").is_dir()


def open_camelyon17(root: Path) -> DataSource:
    """`metadata.csv` and `patches/`; one domain for each hospital (`center-0` to `center-4`), labels: tumor or not."""
    return _open(root, CAMELYON, ("normal", "tumor"), sorted)


def looks_like_iwildcam(root: Path) -> bool:
    """A table with the columns of iWildCam, and its images."""
    return _columns(root) >= IWILDCAM_COLUMNS and (root / "train").is_dir()


def open_iwildcam(root: Path) -> DataSource:
    """`metadata.csv` and `train/*.jpg`; one domain for each split, classes named by `categories.csv` if it is there."""
    return _open(root, IWILDCAM, None, lambda found: [name for name in IWILDCAM_SPLITS if name in found])


def _open(
    root: Path, kind: _Kind, classes: tuple[str, ...] | None, arrange: Callable[[set[str]], list[str]]
) -> DataSource:
    if missing := kind.columns - _columns(root):
        raise DataError(f"{str(root)!r} has no metadata.csv with the columns {', '.join(sorted(missing))}")
    rows: dict[str, list[tuple[str, int]]] = {}
    with (root / "metadata.csv").open(encoding="utf-8", newline="") as file:
        for number, row in enumerate(csv.DictReader(file), start=2):
            try:
                rows.setdefault(kind.domain(row), []).append((kind.path(row), kind.label(row)))
            except (ValueError, AttributeError, TypeError) as error:
                raise DataError(f"line {number} of {str(root / 'metadata.csv')!r} cannot be read: {error}") from error
    most = max((label for found in rows.values() for _, label in found), default=-1)
    names = classes or _categories(root) or tuple(str(number) for number in range(most + 1))
    if most >= len(names):
        raise DataError(f"{str(root)!r} has the label {most}, there are {len(names)} classes")

    def opened(domain: str) -> FileDataset:
        ids, labels = zip(*rows[domain], strict=True)
        name = full_name(kind.layout, domain)
        return FileDataset(root, list(ids), domain=name, labels=np.array(labels, dtype=np.int64), classes=names)

    return DataSource(kind.layout, root, tuple(arrange(set(rows))), opened, names)


def _categories(root: Path) -> tuple[str, ...] | None:
    """The names of iWildCam's classes, by number, if the file numbers them all."""
    table = root / "categories.csv"
    if not table.is_file():
        return None
    with table.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row.get("y", "").isdecimal() and row.get("name")]
    named = {int(row["y"]): row["name"] for row in rows}
    return tuple(named[number] for number in range(len(named))) if sorted(named) == list(range(len(named))) else None

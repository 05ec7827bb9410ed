"""Folders of WILDS: a table describes the samples, images lie beside it. Each dataset is one `WildsTable`."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from neotta.data.layouts.files import FileDataset
from neotta.data.source import DataSource, full_name
from neotta.errors import DataError

Row = dict[str, str]


class Sample(NamedTuple):
    """What a row of the table says.

    Attributes:
        domain: Its domain; the part before a slash is the split.
        path: Its image, below the folder.
        label: Its class: a number, or a name where the table has names (they are numbered in sorted order).
    """

    domain: str
    path: str
    label: int | str


@dataclass(frozen=True)
class WildsTable:
    """How one of the datasets is described.

    Attributes:
        layout: The name of the layout.
        columns: Columns that the table must have.
        images: The folder of the images.
        sample: What a row says, given its number and itself; None to leave it out.
        splits: The order of the splits.
        table: The file.
        classes: Names of the classes, where they are known.
    """

    layout: str
    columns: frozenset[str]
    images: str
    sample: Callable[[int, Row], Sample | None]
    splits: tuple[str, ...] = ()
    table: str = "metadata.csv"
    classes: tuple[str, ...] | None = None

    def recognises(self, root: Path) -> bool:
        """Whether the table with these columns, and the images, are there."""
        return (root / self.images).is_dir() and self._columns(root) >= self.columns

    def open(self, root: Path) -> DataSource:
        """The dataset in this folder.

        Raises:
            DataError: The table is missing, lacks a column, or has a line that cannot be read.
        """
        if missing := self.columns - self._columns(root):
            raise DataError(f"{str(root)!r} has no {self.table} with the columns {', '.join(sorted(missing))}")
        samples = list(self._samples(root))
        classes = self.classes or _categories(root) or _numbered({sample.label for sample in samples})
        number = {name: index for index, name in enumerate(classes)}
        domains: dict[str, tuple[list[str], list[int]]] = {}
        for sample in samples:
            label = number.get(sample.label, -1) if isinstance(sample.label, str) else sample.label
            if not 0 <= label < len(classes):
                raise DataError(f"{str(root)!r} has the label {sample.label}, there are {len(classes)} classes")
            ids, labels = domains.setdefault(sample.domain, ([], []))
            ids.append(sample.path)
            labels.append(label)

        def opened(domain: str) -> FileDataset:
            ids, labels = domains[domain]
            numbers, name = np.array(labels, dtype=np.int64), full_name(self.layout, domain)
            return FileDataset(root, ids, domain=name, labels=numbers, classes=classes)

        return DataSource(self.layout, root, tuple(sorted(domains, key=self._place)), opened, classes)

    def _columns(self, root: Path) -> set[str]:
        table = root / self.table
        if not table.is_file():
            return set()
        try:
            with table.open(encoding="utf-8", newline="") as file:
                return set(next(csv.reader(file), []))
        except (OSError, UnicodeDecodeError, csv.Error):
            return set()

    def _samples(self, root: Path) -> Iterator[Sample]:
        table = root / self.table
        with table.open(encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file)
            try:
                for number, row in enumerate(rows):
                    if (sample := self.sample(number, row)) is not None:
                        yield sample
            except (ValueError, AttributeError, TypeError, csv.Error) as error:
                raise DataError(f"line {rows.line_num} of {str(table)!r} cannot be read: {error}") from error

    def _place(self, domain: str) -> tuple[int, str]:
        split = domain.partition("/")[0]
        return (self.splits.index(split) if split in self.splits else len(self.splits), domain)


def _numbered(labels: set[int | str]) -> tuple[str, ...]:
    """Names of the classes where only samples name them: sorted, or the numbers up to the largest."""
    names = sorted(label for label in labels if isinstance(label, str))
    most = max((label for label in labels if isinstance(label, int)), default=-1)
    return tuple(names) or tuple(str(number) for number in range(most + 1))


def _categories(root: Path) -> tuple[str, ...] | None:
    """The names of iWildCam's classes, by number, if the file numbers them all."""
    table = root / "categories.csv"
    if not table.is_file():
        return None
    with table.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row.get("y", "").isdecimal() and row.get("name")]
    named = {int(row["y"]): row["name"] for row in rows}
    return tuple(named[number] for number in range(len(named))) if sorted(named) == list(range(len(named))) else None


def _patch(_: int, row: Row) -> Sample:
    place = f"patient_{row['patient'].zfill(3)}_node_{row['node']}"
    path = f"patches/{place}/patch_{place}_x_{row['x_coord']}_y_{row['y_coord']}.png"
    return Sample(f"center-{row['center']}", path, int(row["tumor"]))


def _trap(_: int, row: Row) -> Sample:
    return Sample(row["split"], f"train/{row['filename']}", int(float(row["y"])))


def _satellite(number: int, row: Row) -> Sample | None:
    """The official split: images from 2016 on are the test, those from 2013 on the validation out of distribution."""
    split, year = row["split"], int(row["timestamp"][:4])
    if split == "seq":  # held back by its authors
        return None
    if split not in ("train", "val", "test"):
        raise ValueError(f"the split {split!r} is none of train, val, test, seq")
    if year < 2013:
        domain = split if split == "train" else f"id_{split}"
    elif split == ("test" if year >= 2016 else "val"):
        domain = split
    else:  # of another time than its split: WILDS uses it nowhere
        return None
    return Sample(domain, f"images/rgb_img_{number}.png", row["category"])


def _cells(_: int, row: Row) -> Sample:
    """The official split: of the training experiments, the second site of every well is the test within them."""
    experiment, site = row["experiment"], int(row["site"])
    split = "id_test" if row["dataset"] == "train" and site == 2 else row["dataset"]
    path = f"images/{experiment}/Plate{int(row['plate'])}/{row['well']}_s{site}.png"
    return Sample(f"{split}/{experiment}", path, int(row["sirna_id"]))


CAMELYON17 = WildsTable(
    "camelyon17",
    frozenset({"patient", "node", "x_coord", "y_coord", "tumor", "center"}),
    "patches",
    _patch,
    classes=("normal", "tumor"),
)
IWILDCAM = WildsTable(
    "iwildcam",
    frozenset({"filename", "y", "split", "location_remapped"}),
    "train",
    _trap,
    splits=("test", "val", "id_test", "id_val", "train"),
)
FMOW = WildsTable(
    "fmow",
    frozenset({"split", "category", "timestamp"}),
    "images",
    _satellite,
    splits=("test", "val", "id_test", "id_val", "train"),
    table="rgb_metadata.csv",
)
RXRX1 = WildsTable(
    "rxrx1",
    frozenset({"experiment", "plate", "well", "site", "dataset", "sirna_id"}),
    "images",
    _cells,
    splits=("test", "val", "id_test", "train"),
)
TABLES = (CAMELYON17, IWILDCAM, FMOW, RXRX1)


def looks_like_povertymap(root: Path) -> bool:
    """The table of PovertyMap, and its images."""
    return (root / "dhs_metadata.csv").is_file() and (root / "images").is_dir()


def open_povertymap(root: Path) -> DataSource:
    """PovertyMap of WILDS is refused: it has no classes, and its images are no pictures.

    Raises:
        DataError: Always.
    """
    raise DataError(
        f"{str(root)!r} is PovertyMap of WILDS, which cannot be used here: its task is to predict a wealth index (a "
        "number, not a class), and its images are arrays with eight satellite bands instead of RGB"
    )

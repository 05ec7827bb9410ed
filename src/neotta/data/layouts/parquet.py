"""Hugging Face datasets on disk: the Parquet files of a repository, or the Arrow files of `save_to_disk`.

Images are stored as the bytes of image files. Arrow files are mapped into memory; of Parquet files the last
few row groups are kept: reading in order is fast, reading in random order decompresses a row group a time.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import json
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neotta._extras import need
from neotta.data.base import ImageDataset
from neotta.data.layouts.arrays import row_ids
from neotta.data.layouts.files import EncodedDataset
from neotta.data.source import DataSource, full_name
from neotta.errors import DataError

IMAGE_COLUMNS = ("image", "img", "jpg", "png")
LABEL_COLUMNS = ("label", "labels", "wnid", "class", "target", "fine_label")


@dataclass(frozen=True)
class Chunk:
    """Rows that are read together: a row group of a Parquet file, or a whole Arrow file."""

    path: Path
    group: int
    rows: int
    changed: int  # the file's time, so that a file written anew is read anew


class ParquetDataset(EncodedDataset):
    """The rows of some files, in order; the ids are the row numbers."""

    def __init__(
        self,
        chunks: list[Chunk],
        column: str,
        *,
        domain: str,
        labels: NDArray[np.int64] | None,
        classes: tuple[str, ...] | None,
    ) -> None:
        self.chunks, self.column = chunks, column
        self.domain, self.labels, self.classes = domain, labels, classes
        self.starts = list(itertools.accumulate((chunk.rows for chunk in chunks), initial=0))
        self.ids = row_ids(self.starts[-1])

    def encoded(self, index: int) -> bytes:
        """The bytes of one sample's image file."""
        index = range(len(self))[index]
        chunk = bisect.bisect_right(self.starts, index) - 1
        value = _read_column(self.chunks[chunk], self.column)[index - self.starts[chunk]].as_py()
        data = value.get("bytes") if isinstance(value, dict) else value
        if not isinstance(data, bytes):
            raise DataError(f"row {index} of {self.domain} holds no image bytes; was it saved without its images?")
        return data


def looks_like_parquet(path: Path) -> bool:
    """A Parquet file, or a folder with Parquet or Arrow files in it or in its subfolders."""
    return bool(_files(path))


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path] if path.suffix in (".parquet", ".arrow") else []
    places = itertools.product(("", "*/", "*/*/"), ("parquet", "arrow"))
    found = (file for place, suffix in places for file in path.glob(f"{place}*.{suffix}"))
    return sorted(file for file in found if not file.name.startswith((".", "cache-")))


def open_parquet(path: Path) -> DataSource:
    """All splits: `train-00000-of-00002.parquet` and `train/data-00000-of-00002.arrow` are both `train`."""
    files = _files(path)
    if not files:
        raise DataError(f"{str(path)!r} holds no .parquet and no .arrow files")
    groups: dict[str, list[Path]] = {}
    for file in files:
        groups.setdefault(_domain_of(file, path), []).append(file)
    schema = _schema(files[0])
    image, label = _image_column(schema, path), _label_column(schema)
    values = {domain: _labels(group, label) for domain, group in groups.items()} if label else {}
    classes = _class_names(schema, label, values)
    opener = partial(_open, groups, image, values, classes)
    return DataSource("parquet", path, tuple(groups), opener, classes)


def _domain_of(file: Path, root: Path) -> str:
    parts = [*file.relative_to(root).parts[:-1], file.stem] if root.is_dir() else [file.stem]
    parts = [re.sub(r"-\d+-of-\d+$", "", part) for part in parts]
    return "/".join(part for part in parts if part != "data" and not part.isdigit()) or "data"


def _open(
    groups: dict[str, list[Path]],
    column: str,
    values: dict[str, list[Any]],
    classes: tuple[str, ...] | None,
    domain: str,
) -> ImageDataset:
    chunks = [chunk for file in groups[domain] for chunk in _chunks(file)]
    labels = _numbers(values[domain], classes, domain) if domain in values else None
    return ParquetDataset(chunks, column, domain=full_name("parquet", domain), labels=labels, classes=classes)


def _numbers(values: list[Any], classes: tuple[str, ...] | None, domain: str) -> NDArray[np.int64] | None:
    """Class numbers of the rows; None where one is missing or -1, as in test sets that keep theirs secret."""
    if classes is not None and any(isinstance(value, str) for value in values):
        number = {name: index for index, name in enumerate(classes)}
        values = [None if value is None else number[value] for value in values]
    if any(value is None or value < 0 for value in values):
        return None
    if classes is not None and values and max(values) >= len(classes):
        raise DataError(f"label {max(values)} in {domain!r} is beyond the {len(classes)} classes it names")
    return np.array(values, dtype=np.int64)


def _features(schema: Any) -> dict[str, Any]:
    """What Hugging Face notes about the columns; empty if the file comes from elsewhere."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, TypeError, ValueError):
        return {}
    return {name: note for name, note in features.items() if isinstance(note, dict) and name in schema.names}


def _image_column(schema: Any, path: Path) -> str:
    noted = [name for name, note in _features(schema).items() if note.get("_type") == "Image"]
    for name in (*noted, *IMAGE_COLUMNS):
        if name in schema.names:
            kind = schema.field(name).type
            if str(kind) in ("binary", "large_binary") or str(kind).startswith("struct<bytes:"):
                return str(name)
    raise DataError(f"{str(path)!r} has no column of image files; its columns: {', '.join(schema.names)}")


def _label_column(schema: Any) -> str | None:
    noted = [name for name, note in _features(schema).items() if note.get("_type") == "ClassLabel"]
    for name in (*noted, *LABEL_COLUMNS):
        if name in schema.names and str(schema.field(name).type).lstrip("u").startswith(("int", "string")):
            return str(name)
    return None


def _class_names(schema: Any, label: str | None, values: dict[str, list[Any]]) -> tuple[str, ...] | None:
    if label is None:
        return None
    names = _features(schema).get(label, {}).get("names")
    if names:
        return tuple(names)
    texts = {value for column in values.values() for value in column if isinstance(value, str)}
    return tuple(sorted(texts)) or None


def _arrow(module: str) -> Any:
    return need(module, "reading Parquet and Arrow files")


def _reading(path: Path) -> Any:
    """Open a Parquet file, or read an Arrow file by mapping it into memory."""
    arrow, parquet = _arrow("pyarrow"), _arrow("pyarrow.parquet")
    try:
        if path.suffix == ".parquet":
            return parquet.ParquetFile(path, memory_map=True)
        try:
            return arrow.ipc.open_stream(arrow.memory_map(str(path))).read_all()
        except arrow.ArrowInvalid:
            return arrow.ipc.open_file(arrow.memory_map(str(path))).read_all()
    except (OSError, arrow.ArrowException) as error:
        raise DataError(f"{str(path)!r} cannot be read: {error}") from error


def _schema(path: Path) -> Any:
    reading = _reading(path)
    return reading.schema_arrow if path.suffix == ".parquet" else reading.schema


def _chunks(path: Path) -> list[Chunk]:
    reading, changed = _reading(path), path.stat().st_mtime_ns
    if path.suffix != ".parquet":
        return [Chunk(path, 0, reading.num_rows, changed)]
    counts = [reading.metadata.row_group(group).num_rows for group in range(reading.num_row_groups)]
    return [Chunk(path, group, rows, changed) for group, rows in enumerate(counts)]


def _labels(files: list[Path], column: str) -> list[Any]:
    values: list[Any] = []
    for path in files:
        reading = _reading(path)
        try:
            table = reading.read(columns=[column]) if path.suffix == ".parquet" else reading
            if column not in table.column_names:
                raise DataError(f"{str(path)!r} has no column {column!r}, as other files of the dataset have")
            values.extend(table.column(column).to_pylist())
        except (OSError, UnicodeError, _arrow("pyarrow").ArrowException) as error:
            raise DataError(f"column {column!r} of {str(path)!r} cannot be read: {error}") from error
    return values


@functools.lru_cache(maxsize=16)
def _read_column(chunk: Chunk, column: str) -> Any:
    reading = _reading(chunk.path)
    try:
        if chunk.path.suffix == ".parquet":
            reading = reading.read_row_group(chunk.group, columns=[column])
        return reading.column(column)
    except (OSError, KeyError, _arrow("pyarrow").ArrowException) as error:
        raise DataError(f"column {column!r} of {str(chunk.path)!r} cannot be read: {error}") from error

"""Records as one compressed Parquet file: to keep and to read, not to append to.

Every leaf of a record is a column, named by its path (`metrics.top1`). A column whose values share one type has that
type; any other holds JSON. So nothing is lost: what is read back equals what was written. The checksums that lines of
JSON carry are not stored but computed again, since Parquet has its own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from neotta._extras import need
from neotta._files import atomic
from neotta.errors import DataError

if TYPE_CHECKING:
    import pyarrow

SUFFIX = ".parquet"
PURPOSE = "a file of records in Parquet"
CHECKSUM = "sha256"

Leaf = tuple[str, ...]
"""The path to a value in a record."""


def is_parquet(path: str | os.PathLike[str]) -> bool:
    """Whether a file of records is, or would be, Parquet: its name says so."""
    return os.fspath(path).lower().endswith(SUFFIX)


def write_parquet(records: Sequence[Mapping[str, Any]], path: str | os.PathLike[str]) -> None:
    """Write all records to a new file; one that is there is replaced once the new one is complete."""
    arrow, parquet = need("pyarrow", PURPOSE), need("pyarrow.parquet", PURPOSE)
    columns: dict[Leaf, list[Any]] = {}
    for place, record in enumerate(records):
        for leaf, value in _leaves({name: value for name, value in record.items() if name != CHECKSUM}):
            columns.setdefault(leaf, [None] * len(records))[place] = _Present(value)
    columns = dict(sorted(columns.items()))
    built = [_column(arrow, values) for values in columns.values()]
    names = [".".join(leaf) for leaf in columns]
    schema = arrow.schema(
        arrow.field(name, array.type, metadata={"path": json.dumps(leaf), "json": str(int(encoded))})
        for name, leaf, (array, encoded) in zip(names, columns, built, strict=True)
    )
    table = arrow.Table.from_arrays([array for array, _ in built], schema=schema)
    with atomic(path) as temporary:
        parquet.write_table(table, temporary, compression="zstd", compression_level=15)


def read_parquet(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """All records of a file, in order, without checksums.

    Raises:
        DataError: The file is damaged, or does not hold records.
    """
    arrow, parquet = need("pyarrow", PURPOSE), need("pyarrow.parquet", PURPOSE)
    try:
        with parquet.ParquetFile(path) as file:
            table = file.read()
    except (arrow.ArrowInvalid, OSError) as error:
        raise DataError(f"cannot read records from {os.fspath(path)!r}: {error}") from error
    found: list[dict[str, Any]] = [{} for _ in range(table.num_rows)]
    for field, column in zip(table.schema, table.columns, strict=True):
        about = field.metadata or {}
        if b"path" not in about:
            raise DataError(f"{os.fspath(path)!r} does not hold records of runs: it is another kind of Parquet file")
        *parents, name = json.loads(about[b"path"])
        encoded = about[b"json"] == b"1"
        for record, value in zip(found, column.to_pylist(), strict=True):
            if value is not None:
                for parent in parents:
                    record = record.setdefault(parent, {})
                record[name] = json.loads(value) if encoded else value
    return found


class _Present:
    """A value that is there: also None, which is not the same as no value."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _leaves(content: Mapping[str, Any], path: Leaf = ()) -> Iterator[tuple[Leaf, Any]]:
    """Everything in a record that is not a mapping, and empty mappings, with their paths."""
    for name, value in content.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, (*path, name))
        else:
            yield (*path, name), value


def _column(arrow: Any, values: Sequence[_Present | None]) -> tuple[pyarrow.Array, bool]:
    """An array of values, and whether they had to be written as JSON."""
    kinds = {_kind(each.value) for each in values if each is not None}
    types = {str: arrow.string(), int: arrow.int64(), float: arrow.float64(), bool: arrow.bool_()}
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind in types:
        return arrow.array([each and each.value for each in values], types[kind]), False
    if isinstance(kind, tuple) and kind[0] in types:
        return arrow.array([each and each.value for each in values], arrow.list_(types[kind[0]])), False
    return arrow.array([each and json.dumps(each.value, sort_keys=True) for each in values], arrow.string()), True


def _kind(value: Any) -> Any:
    """The type of a value; for a list whose entries share a type, that type in a tuple."""
    if isinstance(value, list):
        entries = {_kind(entry) for entry in value}
        return tuple(entries) if len(entries) == 1 else list
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return None  # larger than any type of Parquet
    return type(value)

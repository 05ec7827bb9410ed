"""Records of runs: one line of JSON each, appended, never changed.

The key of a record is a hash of all that its result depends on. So nothing collides, the same run asked for again is
found, and an interrupted sweep goes on where it stopped. Every line carries a checksum of its own.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neotta._files import atomic, sync_folder
from neotta._locked_file import append_whole, locked
from neotta.errors import DataError, StorageError
from neotta.evaluate.records_parquet import is_parquet, read_parquet, write_parquet

if TYPE_CHECKING:
    import pandas

Record = dict[str, Any]


def content_key(content: Mapping[str, Any]) -> str:
    """A hash of what a result depends on."""
    return hashlib.sha256(_canonical(content).encode()).hexdigest()[:32]


_LAST_READ: list[tuple[Path, bytes, dict[str, Record]]] = []
"""The file read last, as it was, and its records: a study reads the same long file for each of its plans."""


def _known(path: Path, content: bytes) -> tuple[dict[str, Record], int]:
    """The records of a file that were read before, if it only has grown since, and where the others begin."""
    for known, before, good in _LAST_READ:
        if known == path.absolute() and content.startswith(before):
            return {key: dict(record) for key, record in good.items()}, len(before)
    return {}, 0


def _remember(path: Path, content: bytes, good: Mapping[str, Record]) -> None:
    _LAST_READ[:] = [(path.absolute(), content, {key: dict(record) for key, record in good.items()})]


class Records:
    """The records in a file.

    A damaged line is never used: the file as it was is kept aside, with a warning, and its good lines stay; what is
    missing then is computed again. Several processes may append to one file.

    Args:
        path: A `.jsonl` file, which need not exist yet; or a `.parquet` file, which can be read but not appended to.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if self.path.exists() and not self.path.is_file():
            kind = "a folder" if self.path.is_dir() else "no file that keeps what is written to it"
            raise DataError(f"{str(self.path)!r} is {kind}: records are kept in a file, such as results.jsonl")

    def read(self, *, repair: bool = True) -> list[Record]:
        """All records in the order they were written; of records with the same key, the last.

        Fields may be added and taken away; what lies deeper in a record is shared with whoever else reads the file.

        Args:
            repair: Take damaged lines out of the file, and keep it as it was beside it; otherwise only leave them out.

        Raises:
            DataError: The file holds something else than records; it is not touched.
        """
        if not self.path.exists():
            return []
        if is_parquet(self.path):
            return self._read_parquet()
        content = self.path.read_bytes()
        good, bad = self._parsed(content)
        if bad:  # perhaps only a line that is being written: look again while nobody writes
            good, bad = self._repaired() if repair else self._parsed(self._read_locked())
        if bad and not repair:
            self._warn(f"{bad} of {bad + len(good)} records", "they are left out, and the next run computes them again")
        return list(good.values())

    def _read_parquet(self) -> list[Record]:
        content = self.path.read_bytes()
        good, _ = _known(self.path, content)
        good = good or {record["key"]: _with_checksum(record) for record in read_parquet(self.path)}
        _remember(self.path, content, good)
        return list(good.values())

    def _parsed(self, content: bytes) -> tuple[dict[str, Record], int]:
        """The good records by key, and the number of damaged lines."""
        good, start = _known(self.path, content)
        bad = 0
        lines = [line for line in content[start:].split(b"\n") if line.strip()]
        if not start and lines and not any(line.startswith((b'{"', b"\0")) for line in lines):
            # NULs are what a power failure leaves
            raise DataError(f"{str(self.path)!r} holds no records of runs: it is another kind of file")
        for line in lines:
            record = _parse(line)
            if record is None:
                bad += 1
            else:
                good.pop(record["key"], None)
                good[record["key"]] = record
        if not bad and content.endswith(b"\n"):
            _remember(self.path, content, good)
        return good, bad

    def keys(self) -> set[str]:
        """The keys of the runs that succeeded; failed ones are tried again."""
        return {record["key"] for record in self.read() if record.get("status") != "failed"}

    def append(self, record: Mapping[str, Any], *, sync: bool = True) -> None:
        """Add a record, which has a `key`. It is there whole or not at all.

        Args:
            record: What to write.
            sync: Wait until it is on the disk, where it outlives a power failure; that takes some milliseconds.

        Raises:
            StorageError: It cannot be written, as when the disk is full; what was there stays as it was.
            DataError: The file is Parquet.
        """
        self.check_appendable()
        line = f"{as_line(record)}\n".encode()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with locked(self.path, "a+b") as file:
                append_whole(file, line)
                if sync:
                    os.fsync(file.fileno())
                    if file.tell() == len(line):  # the first one: the file's name is new as well
                        sync_folder(self.path.parent)
        except OSError as error:
            raise StorageError(
                f"the results cannot be written to {str(self.path)!r}: {error.strerror or error} "
                "(what was recorded before is safe)"
            ) from error

    def check_appendable(self) -> None:
        """Raise a `DataError` if records cannot be appended to a file of this kind."""
        if is_parquet(self.path):
            lines = self.path.with_suffix(".jsonl")
            raise DataError(
                f"cannot append records to the Parquet file {str(self.path)!r}: convert it with "
                f"`neotta records convert {self.path} {lines}`, then use {str(lines)!r}"
            )

    def _read_locked(self) -> bytes:
        try:
            with locked(self.path, "rb", shared=True) as file:
                return file.read()
        except OSError as error:
            raise StorageError(f"cannot read the records in {str(self.path)!r}: {error.strerror or error}") from error

    def _repaired(self) -> tuple[dict[str, Record], int]:
        """Take damaged lines out of the file, and keep it as it was beside it.

        Appends wait meanwhile, and then go to the new file.
        """
        good: dict[str, Record] = {}
        bad = 1
        try:
            with locked(self.path, "r+b") as file:
                content = file.read()
                good, bad = self._parsed(content)
                if not bad:
                    return good, bad
                names = (Path(f"{self.path}.damaged-{number}") for number in itertools.count(1))
                aside = next(path for path in names if not path.exists())
                with atomic(aside) as temporary:
                    temporary.write_bytes(content)
                write_records(list(good.values()), self.path)
        except OSError as error:
            raise StorageError(
                f"{bad} of {bad + len(good)} records in {str(self.path)!r} are damaged, and the file cannot be "
                f"repaired: {error.strerror or error}"
            ) from error
        what = f"the file is kept as {aside.name!r}, and what is missing is computed again"
        self._warn(f"{bad} of {bad + len(good)} records", what)
        return good, bad

    def _warn(self, which: str, what: str) -> None:
        warnings.warn(f"{which} in {str(self.path)!r} are damaged: {what}", RuntimeWarning, stacklevel=4)


def as_line(record: Mapping[str, Any]) -> str:
    """A record as a line of a file, with its checksum."""
    return _canonical(_with_checksum(record))


def write_records(records: Sequence[Mapping[str, Any]], path: str | os.PathLike[str]) -> None:
    """Write records to a new file: Parquet if its name ends in `.parquet`, otherwise lines of JSON."""
    if is_parquet(path):
        write_parquet(records, path)
        return
    with atomic(path) as temporary:
        temporary.write_text("".join(f"{as_line(record)}\n" for record in records), encoding="utf-8")


def results(path: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> pandas.DataFrame:
    """The records of one or more files as a table: one row per run, one column per thing varied or measured.

    Nested entries become columns with dots: `metrics.top1`, `options.alpha`. Damaged records are left out, with a
    warning; the files stay as they are.
    """
    import pandas

    paths = [path] if isinstance(path, (str, os.PathLike)) else list(path)
    for each in paths:
        if not Path(each).is_file():
            raise DataError(f"there is no file of records {os.fspath(each)!r}")
    records = [record for each in paths for record in Records(each).read(repair=False)]
    return pandas.DataFrame([dict(_flat(record)) for record in records])


def _flat(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in record.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        elif not isinstance(value, Mapping):
            yield prefix + name, value


def _canonical(content: Mapping[str, Any]) -> str:
    try:
        return _CANONICAL.encode(content)
    except (ValueError, TypeError):  # NaN or Inf, or a mapping that is no dict: rare, and slow to look for
        return _CANONICAL.encode(_plain(content))


_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _plain(value: Any) -> Any:
    """JSON knows no NaN and no Inf: they become null."""
    if isinstance(value, Mapping):
        return {str(name): _plain(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _with_checksum(record: Mapping[str, Any]) -> Record:
    content = {name: value for name, value in record.items() if name != "sha256"}
    return {**content, "sha256": hashlib.sha256(_canonical(content).encode()).hexdigest()}


def _parse(line: bytes) -> Record | None:
    """A record, or None if the line is damaged."""
    try:
        record = json.loads(line)
        if not isinstance(record, dict) or not isinstance(record.get("key"), str):
            return None
        return record if _with_checksum(record)["sha256"] == record.get("sha256") else None
    except (ValueError, RecursionError):  # also half a character, which no file can hold, and endless nesting
        return None

"""Records of runs: one line of JSON each, appended, never changed.

The key of a record is a hash of all that its result depends on. So nothing collides, the same run asked for again is
found, and an interrupted sweep goes on where it stopped.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from neotta._extras import need
from neotta._files import atomic, sync_folder
from neotta.data.orders import ORDERS
from neotta.errors import DataError, StorageError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

UNKNOWN = "unknown"
_Real = Annotated[float, Field(ge=-1e12, le=1e12)]
_Whole = Annotated[int, Field(ge=-1, lt=2**53)]
_Seed = Annotated[int, Field(ge=-(2**63), lt=2**64)]
_Scores = dict[str, _Real | None]
_SCHEMA = ConfigDict(strict=True, frozen=True, extra="allow", protected_namespaces=())


class Tuned(BaseModel):
    """How the options of a method were chosen."""

    model_config = _SCHEMA

    by: Literal["top1"] = "top1"
    seeds: list[int] = []
    samples: list[int] = []
    among: dict[str, list[Any]]  # the values of each option
    tried: list[Any]  # each combination of them, with its accuracy
    on: list[str]  # the domains that were tuned on
    accuracy: _Real  # mean accuracy there of what was chosen, in percent


class Record(BaseModel):
    """One run of one method on one order, or what else a file of results holds: a cost, an analysis, a method left out.

    Attributes:
        key: A hash of all that the result depends on.
        status: `"ok"` or `"failed"`.
        error: Why it failed.
        left_out: Why the method was not run at all.
        title: The name of a method of one's own.
        method_title: What pages call the method, such as `"NEO"`.
        model_title: What pages call the model.
        data_title: What pages call the data.
        classes: Number of classes that the model tells apart on this data.
        sizes: Number of images of each domain that the run scored.
        fewest: Number of images of the rarest class in each of them, if they have labels.
        order: Name of the order, as `neotta orders` lists them; records of one plan come in the order of its domains.
        metrics: What was measured: `top1` and `top5` in percent, `ece`, `ece_equal_mass`, `nll`, `brier`, `entropy` and
            `confidence`.
        per_domain: The same for each domain that the run went through, if there are several.
        answers: Which samples were right, and how sure the method was, see `neotta.evaluate.answers`.
        values: The result of an analysis.

    Example:
        >>> record = Record(key="1", method="neo", domain="fog/5", metrics={"top1": 62.5})
        >>> record.metrics["top1"], record.seed
        (62.5, 0)
    """

    model_config = _SCHEMA

    key: str
    status: Literal["ok", "failed"] | None = None
    error: str | None = None
    left_out: str | None = None

    method: str = UNKNOWN
    title: str | None = None
    method_title: str | None = None
    revision: str | None = None
    preset: str | None = None
    options: dict[str, Any] | None = None
    tuned: Tuned | None = None
    model: str = UNKNOWN
    model_title: str | None = None
    weights: str | None = None
    data: str = UNKNOWN
    data_title: str | None = None
    classes: _Whole | None = None
    sizes: dict[str, _Whole] | None = None
    fewest: dict[str, _Whole] | None = None
    domain: str = UNKNOWN
    domains: Annotated[list[str], Field(min_length=1)] | None = None
    source_domain: str | None = None
    order: str = "iid"
    order_options: dict[str, Any] | None = None
    seed: _Seed = 0
    samples: _Whole = -1
    held_out_samples: _Whole = -1
    batch_size: _Whole = 0
    manifests: list[str] = []
    opened: dict[str, Any] | None = None
    preprocess: dict[str, Any] | None = None

    count: _Whole | None = None
    unreadable: _Whole | None = None
    not_adapted: _Whole | None = None
    metrics: _Scores = {}
    per_domain: dict[str, _Scores] | None = None
    reliability: dict[str, Any] | None = None
    per_class: dict[str, list[int]] | None = None
    answers: dict[str, Any] | None = None
    seconds: _Real | None = None
    seconds_without_encoder: _Real | None = None

    analysis: str | None = None
    values: Any = None

    kind: Literal["cost"] | None = None
    conditions: dict[str, Any] = {}
    threads: _Whole | None = None
    image_size: list[int] | None = None
    seconds_per_image: _Real | None = None
    plain_seconds_per_image: _Real | None = None
    slowdown: _Real | None = None
    slowdown_error: _Real | None = None
    forward_passes: _Real | None = None
    backward_passes: _Real | None = None
    peak_memory: _Whole | None = None
    memory_above_plain: _Whole | None = None
    flops_per_image: _Real | None = None

    packages: dict[str, Any] = {}
    machine: dict[str, Any] = {}
    commit: str | None = None
    time: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _of_this_version(cls, entries: Any) -> Any:
        if isinstance(entries, Mapping) and not {"protocol", "stream"}.isdisjoint(entries):
            raise ValueError("it was written by neotta 0.3 or earlier: measure again, to a new file")
        return entries

    @property
    def failed(self) -> bool:
        return self.status == "failed"

    @property
    def measured(self) -> bool:
        """Whether it is of a run that was scored."""
        return "metrics" in self.model_fields_set

    @property
    def order_text(self) -> str:
        """The order with its options, as plans have it: `"correlated:delta=0.1"`."""
        options = ",".join(f"{name}={str(value).lower()}" for name, value in (self.order_options or {}).items())
        return f"{self.order}:{options}" if options else self.order

    @property
    def question(self) -> str:
        """A hash of what was asked, whatever revision of the method answered it."""
        return content_key(self.model_dump(include=_ASKED))

    @property
    def scores_others(self) -> bool:
        """Whether other samples were scored than those adapted to."""
        return self.order in ORDERS and ORDERS[self.order].scores_others

    @property
    def by_domain(self) -> dict[str, _Scores]:
        """The metrics of each domain that the run went through."""
        return self.per_domain or {self.domain: self.metrics}

    def entries(self) -> dict[str, Any]:
        """The entries as a file has them: without those that were not given."""
        return self.model_dump(exclude_unset=True)

    @classmethod
    def make(cls, entries: Mapping[str, Any]) -> Record:
        """The record of these entries, as it would come back from a file.

        Raises:
            DataError: An entry does not fit; the message names it.
        """
        return _checked(_plain(entries))


def content_key(content: Mapping[str, Any]) -> str:
    """A hash of what a result depends on."""
    return hashlib.sha256(as_line(content).encode()).hexdigest()[:32]


_ASKED = {
    *("analysis", "method", "preset", "options", "tuned", "model", "weights", "data", "domains", "source_domain"),
    *("order", "order_options", "seed", "samples", "held_out_samples", "batch_size", "manifests", "preprocess"),
}


class Records:
    """The records in a file, or in memory. Several processes may append to one file.

    Args:
        path: A `.jsonl` file, which need not exist yet; or a `.parquet` file, which can be read but not appended to.
            None keeps the records in memory.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._kept: dict[str, Record] = {}
        self.path = None if path is None else Path(path)
        if self.path is not None and self.path.exists() and not self.path.is_file():
            kind = "a folder" if self.path.is_dir() else "no file that keeps what is written to it"
            raise DataError(f"{str(self.path)!r} is {kind}: records are kept in a file, such as results.jsonl")

    def read(self) -> list[Record]:
        """All records in the order they were written; of records with the same key, the last.

        Lines that are not records are skipped with a warning, and stay in the file.

        Raises:
            DataError: The file holds something else than records, or an entry of a record does not fit.
        """
        if self.path is None:
            return list(self._kept.values())
        if not self.path.exists():
            return []
        about = self.path.stat()
        records, unreadable = _read(self.path.absolute(), about.st_mtime_ns, about.st_size)
        if unreadable:
            warnings.warn(
                f"{unreadable} of {unreadable + len(records)} lines in {str(self.path)!r} cannot be read and are "
                "skipped: what is missing is measured again",
                RuntimeWarning,
                stacklevel=2,
            )
        return list(records)

    def keys(self) -> set[str]:
        """The keys of the runs that succeeded; failed ones are tried again."""
        return {record.key for record in self.read() if not record.failed}

    def append(self, record: Record) -> None:
        """Add a record. When this returns, it is on the disk; it is there whole or not at all.

        Raises:
            StorageError: It cannot be written, as when the disk is full; what was there stays as it was.
            DataError: The file is Parquet.
        """
        if self.path is None:
            self._kept.pop(record.key, None)
            self._kept[record.key] = record
            return
        self.check_appendable()
        line = f"{as_line(record.entries())}\n".encode()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a+b", buffering=0) as file:
                _lock(file, shared=False)
                _append(file, line)
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
        if self.path is not None and is_parquet(self.path):
            raise DataError(
                f"cannot append records to the Parquet file {str(self.path)!r}: name a .jsonl file (write_records of "
                "neotta.evaluate.records converts one to the other)"
            )


@functools.lru_cache(maxsize=1)  # a study reads the same long file for each of its plans
def _read(path: Path, modified: int, size: int) -> tuple[list[Record], int]:
    if is_parquet(path):
        return _read_parquet(path), 0
    with path.open("rb", buffering=0) as file:
        _lock(file, shared=True)  # a line may be half written
        lines = [line for line in file.read().split(b"\n") if line.strip()]
    if lines and not any(line.startswith(b"{") for line in lines):
        raise DataError(f"{str(path)!r} holds no records of runs: it is another kind of file")
    records: dict[str, Record] = {}
    unreadable = 0
    for line in lines:
        try:
            record = Record.model_validate_json(line)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            if first["loc"] in ((), ("key",)) and first["type"] != "value_error":
                unreadable += 1
                continue
            raise _misfit(error, json.loads(line)["key"]) from error
        records.pop(record.key, None)
        records[record.key] = record
    return list(records.values()), unreadable


def _checked(entries: Mapping[str, Any]) -> Record:
    try:
        return Record.model_validate(entries)
    except ValidationError as error:
        raise _misfit(error, entries.get("key")) from error


def _misfit(error: ValidationError, key: object) -> DataError:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    if not first["loc"]:
        return DataError(f"the record {str(key)!r} cannot be read: {first['msg'].removeprefix('Value error, ')}")
    place = ".".join(str(part) for part in first["loc"])
    return DataError(
        f"the record {str(key)!r} cannot be read: its entry {place!r} does not fit ({first['msg']}): take the record "
        "out of its file"
    )


def _lock(file: FileIO, *, shared: bool) -> None:
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)


def _append(file: FileIO, line: bytes) -> None:
    size = file.seek(0, os.SEEK_END)
    if size:
        file.seek(-1, os.SEEK_END)
        if file.read(1) != b"\n":  # a writer died in the middle of a line
            line = b"\n" + line
    try:
        written = 0
        while written < len(line):
            written += file.write(line[written:])
    except OSError:
        file.truncate(size)
        raise


def write_records(records: Iterable[Record], path: str | os.PathLike[str]) -> None:
    """Write records to a new file: Parquet if its name ends in `.parquet`, otherwise lines of JSON."""
    entries = [record.entries() for record in records]
    with atomic(path) as temporary:
        if is_parquet(path):
            _write_parquet(entries, temporary)
        else:
            temporary.write_text("".join(f"{as_line(each)}\n" for each in entries), encoding="utf-8")


def as_line(content: Mapping[str, Any]) -> str:
    """A record as a line of a file: JSON with sorted names."""
    try:
        return _CANONICAL.encode(content)
    except (ValueError, TypeError):  # NaN or Inf, or a mapping that is no dict: rare, and slow to look for
        return _CANONICAL.encode(_plain(content))


_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _plain(value: Any) -> Any:  # JSON knows no NaN and no Inf: they become null
    if isinstance(value, Mapping):
        return {str(name): _plain(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


# ---- Parquet

_TYPES = {str: "string", int: "Int64", float: "Float64", bool: "boolean"}
_JSON = ".json"
"""Columns whose names end so hold JSON: entries that are nested, or of several types."""


def is_parquet(path: str | os.PathLike[str]) -> bool:
    return os.fspath(path).lower().endswith(".parquet")


def _write_parquet(records: Sequence[Mapping[str, Any]], path: Path) -> None:
    import pandas

    need("pyarrow", "a file of records in Parquet")
    columns = {}
    for name in dict.fromkeys(name for record in records for name in record):
        values = [record.get(name) for record in records]
        kinds = {type(value) for value in values if value is not None}
        kind = kinds.pop() if len(kinds) == 1 else None
        if kind in _TYPES:
            columns[name] = pandas.array(values, dtype=_TYPES[kind])
        else:
            texts = [None if value is None else json.dumps(_plain(value), sort_keys=True) for value in values]
            columns[f"{name}{_JSON}"] = pandas.array(texts, dtype="string")
    frame = pandas.DataFrame(columns)
    frame.to_parquet(path, index=False, compression="zstd", compression_level=22)


def _read_parquet(path: Path) -> list[Record]:
    import pandas

    need("pyarrow", "a file of records in Parquet")
    try:
        frame = pandas.read_parquet(path, dtype_backend="numpy_nullable")
        rows: list[dict[str, Any]] = [{} for _ in range(len(frame))]
        for column in frame:
            name = column.removesuffix(_JSON)
            for row, value in zip(rows, frame[column].tolist(), strict=True):
                if value is not pandas.NA:
                    row[name] = value if name == column else json.loads(value)
    except (ValueError, OSError, TypeError) as error:
        raise DataError(f"cannot read records from {str(path)!r}: {error}") from error
    if not all(isinstance(row.get("key"), str) for row in rows):
        raise DataError(f"{str(path)!r} does not hold records of runs: it is another kind of Parquet file")
    return [_checked(row) for row in rows]

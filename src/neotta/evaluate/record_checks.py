"""Checks of what a record holds: a checksum says that a line is as it was written, not that it makes sense."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictBool, ValidationError

from neotta.errors import DataError
from neotta.evaluate.labels import UNKNOWN
from neotta.evaluate.records import Record

_Real = Annotated[float, Field(ge=-1e12, le=1e12)]
_Whole = Annotated[int, Field(ge=-1, lt=2**53)]
_Seed = Annotated[int, Field(ge=-(2**63), lt=2**64)]
_Scores = dict[str, _Real | None]
_STRICT = ConfigDict(strict=True, extra="allow", protected_namespaces=())


class _Calibration(BaseModel):
    model_config = _STRICT

    reached: Annotated[list[_Real], Field(min_length=2, max_length=2)]
    weak: dict[str, _Real]
    images: int
    accuracy: _Real


class _Tuned(BaseModel):
    model_config = _STRICT

    among: dict[str, list[Any]]
    tried: list[Any]
    on: list[str]
    accuracy: _Real


class _Opened(BaseModel):
    model_config = _STRICT

    model_options: dict[str, Any] | None = None
    domains: list[str] | None = None
    corrupted: StrictBool | None = None


class _Entries(BaseModel):
    """What tables are made of; a record may have more, and those of older versions have less."""

    model_config = _STRICT

    method: str
    code: str | None = None
    preset: str | None = None
    options: dict[str, Any] | None = None
    model: str | None = None
    weights: str | None = None
    data: str | None = None
    protocol: str = "online"
    source_domain: str | None = None
    stream: str = "iid"
    stream_options: dict[str, Any] | None = None
    seed: _Seed = 0
    samples: _Whole = -1
    evaluate: _Whole = -1
    batch_size: _Whole = 0
    count: _Whole | None = None
    manifests: list[str] = []
    packages: dict[str, Any] = {}
    opened: _Opened | None = None
    calibration: _Calibration | None = None
    tuned: _Tuned | None = None
    answers: dict[str, Any] | None = None
    per_domain: dict[str, _Scores] | None = None
    seconds: _Real = 0.0
    seconds_without_encoder: _Real = 0.0


class _Run(_Entries):
    domain: str = UNKNOWN
    domains: Annotated[list[str], Field(min_length=1)] | None = None


class _Measured(_Run):
    domain: str
    metrics: _Scores


def check_records(records: Iterable[Record]) -> None:
    """Refuse records of runs whose entries are of another kind than those that `neotta run` writes.

    Raises:
        DataError: It names the first record, and what is wrong with it.
    """
    for record in records:
        kind = _kind(record)
        if kind is None:
            continue
        try:
            kind.model_validate(record)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            place = ".".join(str(part) for part in first["loc"])
            raise DataError(
                f"the record {str(record.get('key'))!r} cannot be read: its entry {place!r} does not fit "
                f"({first['msg']}): take the record out of its file"
            ) from error


def _kind(record: Record) -> type[BaseModel] | None:
    if "metrics" in record:
        return _Measured
    if record.get("status") == "failed":
        return _Run
    return _Entries if any(name in record for name in ("left_out", "calibration", "tuned")) else None

"""Which code made a record, and which records another version of the code made.

A record is *older* if the method, what it is built on, the metrics or neotta's version have changed since. It stays in
its file, but a run that is asked for again is carried out again.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from pathlib import Path

from neotta._source_code import Tree, source_hash
from neotta._version import __version__
from neotta._words import counted
from neotta.adapters.registry import code_hash
from neotta.errors import NeottaError
from neotta.evaluate import metrics, predictions
from neotta.evaluate.records import Record, content_key

_SCORING = Tree(Path(__file__).parents[2], (metrics.__name__, predictions.__name__))


def code_of(method: str) -> str:
    """A hash of the code that the result of a method depends on, and of neotta's version."""
    return content_key({"method": code_hash(method), "metrics": _metrics(), "version": __version__})


@functools.cache
def _metrics() -> str:
    return source_hash([metrics.__name__], [_SCORING])


def question(record: Record) -> str:
    """A hash of what a record answers, whatever code made it.

    Records from before code was part of the key have this hash as their key.
    """
    return str(record.get("question", record["key"]))


def current(records: Iterable[Record]) -> list[Record]:
    """The records without older ones that have been measured again."""
    records = list(records)
    outdated = {id(record) for record in older(records)}
    again = {question(record) for record in records if id(record) not in outdated}
    return [record for record in records if id(record) not in outdated or question(record) not in again]


def older(records: Iterable[Record]) -> list[Record]:
    """The records of runs that were made by other code than what is installed.

    Records of methods from a file (`py:`) are not judged: that would run code which a record names.
    """
    judged = [record for record in records if "metrics" in record and "py:" not in str(record["method"])]
    return [record for record in judged if record.get("code") != _installed(record["method"])]


def _installed(method: str) -> str | None:
    try:
        return code_of(method)
    except NeottaError:  # a method that is not here any more
        return None


def about_older(records: Sequence[Record], total: int) -> str:
    """One line about older records among a total of runs; empty if there are none."""
    if not records:
        return ""
    methods = sorted({str(record["method"]) for record in records})
    versions = sorted({str(record.get("packages", {}).get("neotta", "?")) for record in records})
    return (
        f"older: {len(records):,} of {counted(total, 'run')}, made by other code than what is installed "
        f"(neotta {', '.join(versions)}; {', '.join(methods)})"
    )

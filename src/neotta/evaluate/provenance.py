"""What made a record: versions, machine, time, and the revision of the method.

A record is *older* if the method has another `revision` now. It stays in its file, but a run that is asked for again is
carried out again.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import os
import platform
import subprocess
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from neotta._version import __version__
from neotta._words import counted
from neotta.adapters.registry import revision_of
from neotta.errors import NeottaError
from neotta.evaluate.records import Record


def surroundings() -> dict[str, Any]:
    """Versions of packages, the git revision of neotta if it runs from a repository, the machine, and the time."""
    now = datetime.datetime.now(datetime.timezone.utc)
    return {**_fixed(), "time": now.isoformat(timespec="seconds")}


@functools.cache
def _fixed() -> dict[str, Any]:
    import torch

    packages = {"neotta": __version__}
    for name in ("torch", "numpy", "timm", "transformers", "pillow", "scipy"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            packages[name] = metadata.version(name)
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    machine = {"system": platform.system(), "processor": _processor(), "cores": os.cpu_count(), "gpu": gpu}
    commit = _commit(Path(__file__).parents[3])
    return {
        "packages": packages,
        "machine": {**machine, "python": platform.python_version()},
        **({"commit": commit} if commit else {}),
    }


def _commit(folder: Path) -> str:
    if not (folder / ".git").exists():
        return ""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = ["git", "-C", str(folder), "rev-parse", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    return ""


def _processor(root: Path = Path("/")) -> str:
    with contextlib.suppress(OSError, StopIteration):
        lines = (root / "proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    with contextlib.suppress(OSError):
        return (root / "proc/device-tree/model").read_text().strip("\0\n ")
    return platform.processor() or platform.machine()


def current(records: Iterable[Record]) -> list[Record]:
    """The records without older ones that have been measured again."""
    records = list(records)
    outdated = {id(record) for record in older(records)}
    again = {record.question for record in records if id(record) not in outdated} if outdated else set()
    return [record for record in records if id(record) not in outdated or record.question not in again]


def older(records: Iterable[Record]) -> list[Record]:
    """The records of runs that were made by another revision of their method than what is installed.

    Records of methods from a file (`py:`) are not judged: that would run code which a record names.
    """
    judged = [record for record in records if record.measured and "py:" not in record.method]
    return [record for record in judged if record.revision != _installed(record.method)]


def _installed(method: str) -> str | None:
    try:
        return revision_of(method)
    except NeottaError:  # a method that is not here any more
        return None


def about_older(records: Sequence[Record], total: int) -> str:
    """One line about older records among a total of runs; empty if there are none."""
    if not records:
        return ""
    methods = sorted({record.method for record in records})
    versions = sorted({str(record.packages.get("neotta", "?")) for record in records})
    return (
        f"older: {len(records):,} of {counted(total, 'run')}, made by another revision of the method than what is "
        f"installed (neotta {', '.join(versions)}; {', '.join(methods)})"
    )

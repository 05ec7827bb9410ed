"""What a result may depend on besides what was asked for: versions and machine."""

from __future__ import annotations

import contextlib
import datetime
import functools
import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

from neotta._version import __version__


@functools.cache
def _fixed() -> dict[str, Any]:
    import torch

    packages = {"neotta": __version__}
    for name in ("torch", "numpy", "timm", "transformers", "pillow", "scipy"):
        try:
            packages[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    machine = {"system": platform.system(), "processor": _processor(), "cores": os.cpu_count(), "gpu": gpu}
    return {"packages": packages, "machine": {**machine, "python": platform.python_version()}}


def surroundings() -> dict[str, Any]:
    """Versions of packages, the machine, and the time."""
    now = datetime.datetime.now(datetime.timezone.utc)
    return {**_fixed(), "time": now.isoformat(timespec="seconds")}


def _processor(root: Path = Path("/")) -> str:
    """The processor by its name; small boards have none, but tell what board they are."""
    with contextlib.suppress(OSError, StopIteration):
        lines = (root / "proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    with contextlib.suppress(OSError):
        return (root / "proc/device-tree/model").read_text().strip("\0\n ")
    return platform.processor() or platform.machine()

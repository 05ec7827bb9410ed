"""Let torchvision be imported beside a torch that its operators were not built for.

The torchvision wheel on PyPI is built for CUDA. Beside a CPU build of torch its library of operators does not
load, and `import torchvision` (so also `import timm`) fails: "operator torchvision::nms does not exist".
Nothing that neotta does needs these operators, only that their names exist while torchvision is imported.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import threading
from importlib.machinery import PathFinder

import torch

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_lock = threading.Lock()
_declared: torch.library.Library | None = None  # the declarations last as long as this object


def guard() -> None:
    """Call before importing torchvision, timm or a transformers image processor; any number of times.

    Where torchvision's operators load, or it is not installed, nothing is changed. Elsewhere the two that it
    looks for on import are declared, without an implementation: calling them is an error as before.
    """
    global _declared
    with _lock:
        if _declared is not None or "torchvision" in sys.modules or _operators_load():
            return
        _declared = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
        for schema in _SCHEMAS:
            _declared.define(schema)  # type: ignore[no-untyped-call]


def _operators_load() -> bool:
    """Load torchvision's library as its own import will; true also where there is no torchvision."""
    package = importlib.util.find_spec("torchvision")
    if package is None or package.submodule_search_locations is None:
        return True
    library = PathFinder.find_spec("_C", list(package.submodule_search_locations))
    if library is not None and library.origin is not None:
        with contextlib.suppress(OSError):
            torch.ops.load_library(library.origin)  # type: ignore[no-untyped-call]
    return hasattr(torch.ops.torchvision, "nms")

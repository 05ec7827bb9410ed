"""Let torchvision be imported beside a torch that its operators were not built for.

The torchvision wheel on PyPI is built for CUDA. Beside a CPU build of torch its library of operators does not
load, and `import torchvision` (and with it `import timm`) then fails: "operator torchvision::nms does not exist".
Nothing that neotta does needs these operators, only that their names exist while torchvision is imported.
"""

from __future__ import annotations

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
    looks for on import are declared (without an implementation: calling them still says that they are missing).
    """
    global _declared
    with _lock:
        if _declared is not None or "torchvision" in sys.modules or _operators_load():
            return
        _declared = torch.library.Library("torchvision", "FRAGMENT")
        for schema in _SCHEMAS:
            _declared.define(schema)


def _operators_load() -> bool:
    """Load torchvision's library as its own import will; true also where there is no torchvision to be helped."""
    package = importlib.util.find_spec("torchvision")
    if package is None or package.submodule_search_locations is None:
        return True
    library = PathFinder.find_spec("_C", list(package.submodule_search_locations))
    if library is not None and library.origin is not None:
        try:
            torch.ops.load_library(library.origin)
        except OSError:
            pass
    return hasattr(torch.ops.torchvision, "nms")

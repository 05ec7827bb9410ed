"""Let torchvision be imported beside a torch that its operators were not built for.

The torchvision wheel on PyPI is built for CUDA. Beside a CPU build of torch its library of operators does not
load, and `import torchvision` (so also `import timm`) fails: "operator torchvision::nms does not exist".
Nothing that neotta does needs these operators, only that their names exist while torchvision is imported.

`import neotta` installs an import hook, which acts when torchvision is imported later, by whatever package.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import threading
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.abc import Loader

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_lock = threading.Lock()
_declared: Any = None  # a torch.library.Library: the declarations last as long as this object


class Hook:
    """A finder of torchvision that lets the other finders find it, and calls `guard` just before it is loaded."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Called by every import of a module that is not loaded yet."""
        if name != "torchvision":
            return None
        others = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not Hook)
        spec = next(filter(None, others), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Guarded(spec.loader)  # type: ignore[assignment]
        return spec


class _Guarded:
    """A loader that calls `guard` and then takes itself out: no trace is left in the module."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        # Here, and not in `find_spec`, which is called under the lock of all imports: `guard` imports, too.
        spec.loader = self.loader
        with contextlib.suppress(ImportError):  # without torch, torchvision's own import says so
            guard()
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)


def install() -> None:
    """Install the import hook; cheap, and without effect if it is installed already."""
    if Hook not in sys.meta_path:
        sys.meta_path.insert(0, Hook)


def guard() -> None:
    """Call before importing torchvision, timm or a transformers image processor; any number of times.

    Where torchvision's operators load, or it is not installed, nothing is changed. Elsewhere the two that it
    looks for on import are declared, without an implementation: calling them is an error as before.
    """
    global _declared
    import torch

    with _lock:
        if _declared is not None or "torchvision" in sys.modules or _operators_load():
            return
        _declared = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
        for schema in _SCHEMAS:
            _declared.define(schema)


def _operators_load() -> bool:
    """Load torchvision's library as its own import will; true also where there is no torchvision."""
    import torch

    package = importlib.util.find_spec("torchvision")
    if package is None or package.submodule_search_locations is None:
        return True
    library = PathFinder.find_spec("_C", list(package.submodule_search_locations))
    if library is not None and library.origin is not None:
        with contextlib.suppress(OSError):
            torch.ops.load_library(library.origin)  # type: ignore[no-untyped-call]
    return hasattr(torch.ops.torchvision, "nms")

"""Test-time adaptation of image classifiers by latent re-centering.

```python
model = neotta.adapt(model)                 # NEO-Stream replaces the linear head; "neo" is the paper's rule
adapter = neotta.create("sar", model)       # any other method, by name
results = neotta.evaluate(model, (images, labels), methods=["none", "neo", "tent"])  # a table with verdicts
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from neotta._extras import lazy
from neotta._version import __version__

if TYPE_CHECKING:
    from neotta.adapters.base import Adapter
    from neotta.adapters.registry import create, methods, register
    from neotta.errors import NeottaError
    from neotta.evaluate import evaluate
    from neotta.evaluate.results import results
    from neotta.models.load import LoadedModel, load_model
    from neotta.models.packaged import available_models
    from neotta.models.preprocess import Preprocess
    from neotta.monitoring.health import health
    from neotta.monitoring.library import DomainLibrary
    from neotta.monitoring.monitor import Monitor
    from neotta.neo.adapt import adapt
    from neotta.neo.context import paused, rows, streams
    from neotta.neo.files import load, save
    from neotta.neo.fold import fold, restore
    from neotta.neo.head import NEOHead
    from neotta.neo.merge import merge
    from neotta.neo.reference import reference
    from neotta.neo.reference_file import Reference
    from neotta.neo.split import split
    from neotta.neo.surgery import head, heads, reset
    from neotta.neo.sync import sync
    from neotta.neo.zero_shot import zero_shot

__all__ = [
    "Adapter",
    "DomainLibrary",
    "LoadedModel",
    "Monitor",
    "NEOHead",
    "NeottaError",
    "Preprocess",
    "Reference",
    "__version__",
    "adapt",
    "available_models",
    "create",
    "evaluate",
    "fold",
    "head",
    "heads",
    "health",
    "load",
    "load_model",
    "merge",
    "methods",
    "paused",
    "reference",
    "register",
    "reset",
    "restore",
    "results",
    "rows",
    "save",
    "split",
    "streams",
    "sync",
    "zero_shot",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "Adapter": "neotta.adapters.base",
        "DomainLibrary": "neotta.monitoring.library",
        "Monitor": "neotta.monitoring.monitor",
        "NEOHead": "neotta.neo.head",
        "NeottaError": "neotta.errors",
        "LoadedModel": "neotta.models.load",
        "Reference": "neotta.neo.reference_file",
        "reference": "neotta.neo.reference",
        "Preprocess": "neotta.models.preprocess",
        "adapt": "neotta.neo.adapt",
        "available_models": "neotta.models.packaged",
        "load_model": "neotta.models.load",
        "evaluate": "neotta.evaluate",
        "results": "neotta.evaluate.results",
        "create": "neotta.adapters.registry",
        "fold": "neotta.neo.fold",
        "head": "neotta.neo.surgery",
        "heads": "neotta.neo.surgery",
        "health": "neotta.monitoring.health",
        "load": "neotta.neo.files",
        "merge": "neotta.neo.merge",
        "methods": "neotta.adapters.registry",
        "paused": "neotta.neo.context",
        "register": "neotta.adapters.registry",
        "reset": "neotta.neo.surgery",
        "restore": "neotta.neo.fold",
        "rows": "neotta.neo.context",
        "save": "neotta.neo.files",
        "split": "neotta.neo.split",
        "streams": "neotta.neo.context",
        "sync": "neotta.neo.sync",
        "zero_shot": "neotta.neo.zero_shot",
    },
)

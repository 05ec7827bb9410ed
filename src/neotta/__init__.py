"""Test-time adaptation of image classifiers by latent re-centering.

```python
model = neotta.adapt(model)                 # NEO-Stream replaces the linear head; "neo" is the paper's rule
adapter = neotta.create("sar", model)       # any other method, by name
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import neotta._torchvision
from neotta._lazy import lazy
from neotta._version import __version__

if TYPE_CHECKING:
    from neotta.adapters.base import Adapter
    from neotta.adapters.registry import create, methods, register
    from neotta.errors import NeottaError
    from neotta.evaluate.records import results
    from neotta.models.available import available_models
    from neotta.models.load import LoadedModel, load_model
    from neotta.models.preprocess import Preprocess
    from neotta.monitoring.library import DomainLibrary
    from neotta.monitoring.monitor import Monitor
    from neotta.neo.adapt import adapt
    from neotta.neo.centroid import Centroid
    from neotta.neo.fold import fold, restore
    from neotta.neo.head import NEOHead
    from neotta.neo.health import health
    from neotta.neo.merge import merge
    from neotta.neo.paused import paused
    from neotta.neo.per_call import rows
    from neotta.neo.reference import reference
    from neotta.neo.reference_file import Reference
    from neotta.neo.split import split
    from neotta.neo.state import load, save
    from neotta.neo.stream_ids import streams
    from neotta.neo.surgery import head, heads, reset
    from neotta.neo.sync import sync
    from neotta.neo.zero_shot import zero_shot

__all__ = [
    "Adapter",
    "Centroid",
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

neotta._torchvision.install()  # acts only if torchvision is imported later and its operators do not load

__getattr__, __dir__ = lazy(
    __name__,
    {
        "Adapter": "neotta.adapters.base",
        "Centroid": "neotta.neo.centroid",
        "DomainLibrary": "neotta.monitoring.library",
        "Monitor": "neotta.monitoring.monitor",
        "NEOHead": "neotta.neo.head",
        "NeottaError": "neotta.errors",
        "LoadedModel": "neotta.models.load",
        "Reference": "neotta.neo.reference_file",
        "reference": "neotta.neo.reference",
        "Preprocess": "neotta.models.preprocess",
        "adapt": "neotta.neo.adapt",
        "available_models": "neotta.models.available",
        "load_model": "neotta.models.load",
        "results": "neotta.evaluate.records",
        "create": "neotta.adapters.registry",
        "fold": "neotta.neo.fold",
        "head": "neotta.neo.surgery",
        "heads": "neotta.neo.surgery",
        "health": "neotta.neo.health",
        "load": "neotta.neo.state",
        "merge": "neotta.neo.merge",
        "methods": "neotta.adapters.registry",
        "paused": "neotta.neo.paused",
        "register": "neotta.adapters.registry",
        "reset": "neotta.neo.surgery",
        "restore": "neotta.neo.fold",
        "rows": "neotta.neo.per_call",
        "save": "neotta.neo.state",
        "split": "neotta.neo.split",
        "streams": "neotta.neo.stream_ids",
        "sync": "neotta.neo.sync",
        "zero_shot": "neotta.neo.zero_shot",
    },
)

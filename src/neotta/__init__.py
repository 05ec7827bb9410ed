"""Test-time adaptation of image classifiers by latent re-centering.

```python
model = neotta.adapt(model)                 # NEO in the place of the linear head
adapter = neotta.create("sar", model)       # or any other method, by name
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from neotta._lazy import lazy
from neotta._version import __version__

if TYPE_CHECKING:
    from neotta.adapters.base import Adapter
    from neotta.adapters.registry import create, methods, register
    from neotta.centroid import Centroid
    from neotta.errors import NeottaError
    from neotta.evaluate.records import results
    from neotta.fleet.ids import streams
    from neotta.fleet.merging import merge
    from neotta.fleet.syncing import sync
    from neotta.models.catalog import available_models
    from neotta.models.folding import fold, restore
    from neotta.models.load import LoadedModel, load_model
    from neotta.models.preprocess import Preprocess
    from neotta.models.split import split
    from neotta.models.state import load, save
    from neotta.models.surgery import adapt, head, heads, reset
    from neotta.monitoring.library import DomainLibrary
    from neotta.monitoring.monitor import Monitor
    from neotta.neo import NEOHead

__all__ = [
    "Adapter",
    "Centroid",
    "DomainLibrary",
    "LoadedModel",
    "Monitor",
    "NEOHead",
    "NeottaError",
    "Preprocess",
    "__version__",
    "adapt",
    "available_models",
    "create",
    "fold",
    "head",
    "heads",
    "load",
    "load_model",
    "merge",
    "methods",
    "register",
    "reset",
    "restore",
    "results",
    "save",
    "split",
    "streams",
    "sync",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "Adapter": "neotta.adapters.base",
        "Centroid": "neotta.centroid",
        "DomainLibrary": "neotta.monitoring.library",
        "Monitor": "neotta.monitoring.monitor",
        "NEOHead": "neotta.neo",
        "NeottaError": "neotta.errors",
        "LoadedModel": "neotta.models.load",
        "Preprocess": "neotta.models.preprocess",
        "adapt": "neotta.models.surgery",
        "available_models": "neotta.models.catalog",
        "load_model": "neotta.models.load",
        "results": "neotta.evaluate.records",
        "create": "neotta.adapters.registry",
        "fold": "neotta.models.folding",
        "head": "neotta.models.surgery",
        "heads": "neotta.models.surgery",
        "load": "neotta.models.state",
        "merge": "neotta.fleet.merging",
        "methods": "neotta.adapters.registry",
        "register": "neotta.adapters.registry",
        "reset": "neotta.models.surgery",
        "restore": "neotta.models.folding",
        "save": "neotta.models.state",
        "split": "neotta.models.split",
        "streams": "neotta.fleet.ids",
        "sync": "neotta.fleet.syncing",
    },
)

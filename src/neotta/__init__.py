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
    from neotta.models.split import split
    from neotta.models.state import load, save
    from neotta.models.surgery import adapt, fold, head, heads, reset, restore
    from neotta.neo import NEOHead

__all__ = [
    "Adapter",
    "Centroid",
    "NEOHead",
    "NeottaError",
    "__version__",
    "adapt",
    "create",
    "fold",
    "head",
    "heads",
    "load",
    "methods",
    "register",
    "reset",
    "restore",
    "save",
    "split",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "Adapter": "neotta.adapters.base",
        "Centroid": "neotta.centroid",
        "NEOHead": "neotta.neo",
        "NeottaError": "neotta.errors",
        "adapt": "neotta.models.surgery",
        "create": "neotta.adapters.registry",
        "fold": "neotta.models.surgery",
        "head": "neotta.models.surgery",
        "heads": "neotta.models.surgery",
        "load": "neotta.models.state",
        "methods": "neotta.adapters.registry",
        "register": "neotta.adapters.registry",
        "reset": "neotta.models.surgery",
        "restore": "neotta.models.surgery",
        "save": "neotta.models.state",
        "split": "neotta.models.split",
    },
)

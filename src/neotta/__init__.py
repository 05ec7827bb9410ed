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
    from neotta.evaluate.judge import judge
    from neotta.evaluate.judgement import Judgement
    from neotta.evaluate.results import results
    from neotta.models.load import LoadedModel, load_model
    from neotta.models.packaged import available_models
    from neotta.models.preprocess import Preprocess
    from neotta.monitoring.accuracy import accuracy
    from neotta.monitoring.health import health
    from neotta.neo.adapt import adapt
    from neotta.neo.context import paused, rows, streams
    from neotta.neo.files import load, save
    from neotta.neo.fold import fold, restore
    from neotta.neo.head import NEOHead
    from neotta.neo.merge import merge, sync
    from neotta.neo.reference import reference
    from neotta.neo.reference_file import Reference
    from neotta.neo.split import split
    from neotta.neo.surgery import head, heads, reset
    from neotta.neo.zero_shot import zero_shot

__all__ = [
    "Adapter",
    "Judgement",
    "LoadedModel",
    "NEOHead",
    "NeottaError",
    "Preprocess",
    "Reference",
    "__version__",
    "accuracy",
    "adapt",
    "available_models",
    "create",
    "evaluate",
    "fold",
    "head",
    "heads",
    "health",
    "judge",
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
        "neotta.adapters.base": "Adapter",
        "neotta.adapters.registry": "create methods register",
        "neotta.errors": "NeottaError",
        "neotta.evaluate": "evaluate",
        "neotta.evaluate.judge": "judge",
        "neotta.evaluate.judgement": "Judgement",
        "neotta.evaluate.results": "results",
        "neotta.models.load": "LoadedModel load_model",
        "neotta.models.packaged": "available_models",
        "neotta.models.preprocess": "Preprocess",
        "neotta.monitoring.accuracy": "accuracy",
        "neotta.monitoring.health": "health",
        "neotta.neo.adapt": "adapt",
        "neotta.neo.context": "paused rows streams",
        "neotta.neo.files": "load save",
        "neotta.neo.fold": "fold restore",
        "neotta.neo.head": "NEOHead",
        "neotta.neo.merge": "merge sync",
        "neotta.neo.reference": "reference",
        "neotta.neo.reference_file": "Reference",
        "neotta.neo.split": "split",
        "neotta.neo.surgery": "head heads reset",
        "neotta.neo.zero_shot": "zero_shot",
    },
)

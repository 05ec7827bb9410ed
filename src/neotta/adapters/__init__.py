"""Methods that adapt a model while it predicts, and what it takes to write one: see docs/your-own-method.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neotta._extras import lazy

if TYPE_CHECKING:
    from neotta.adapters._methods import register
    from neotta.adapters.base import Adapter, EmbeddingAdapter
    from neotta.adapters.declaration import DataFacts, Declaration
    from neotta.adapters.gradient import GradientAdapter, norm_affine
    from neotta.adapters.losses import entropy
    from neotta.adapters.registry import create, data_options, find, methods
    from neotta.neo.module_swap import ModuleSwap
    from neotta.options import Options

__all__ = [
    "Adapter",
    "DataFacts",
    "Declaration",
    "EmbeddingAdapter",
    "GradientAdapter",
    "ModuleSwap",
    "Options",
    "create",
    "data_options",
    "entropy",
    "find",
    "methods",
    "norm_affine",
    "register",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "neotta.adapters._methods": "register",
        "neotta.adapters.base": "Adapter EmbeddingAdapter",
        "neotta.adapters.declaration": "DataFacts Declaration",
        "neotta.adapters.gradient": "GradientAdapter norm_affine",
        "neotta.adapters.losses": "entropy",
        "neotta.adapters.registry": "create data_options find methods",
        "neotta.neo.module_swap": "ModuleSwap",
        "neotta.options": "Options",
    },
)

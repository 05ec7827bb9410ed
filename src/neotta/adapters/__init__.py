"""Methods that adapt a model while it predicts, and what it takes to write one: see docs/your-own-method.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neotta._extras import lazy

if TYPE_CHECKING:
    from neotta.adapters._methods import register
    from neotta.adapters.base import Adapter, EmbeddingAdapter
    from neotta.adapters.declaration import DataFacts, Declaration
    from neotta.adapters.gradient import GradientAdapter, forward_with_embeddings, norm_affine
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
    "forward_with_embeddings",
    "methods",
    "norm_affine",
    "register",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "Adapter": "neotta.adapters.base",
        "DataFacts": "neotta.adapters.declaration",
        "Declaration": "neotta.adapters.declaration",
        "EmbeddingAdapter": "neotta.adapters.base",
        "GradientAdapter": "neotta.adapters.gradient",
        "ModuleSwap": "neotta.neo.module_swap",
        "Options": "neotta.options",
        "create": "neotta.adapters.registry",
        "data_options": "neotta.adapters.registry",
        "entropy": "neotta.adapters.losses",
        "find": "neotta.adapters.registry",
        "forward_with_embeddings": "neotta.adapters.gradient",
        "methods": "neotta.adapters.registry",
        "norm_affine": "neotta.adapters.gradient",
        "register": "neotta.adapters._methods",
    },
)

"""The key of a run: a hash of everything that its result depends on."""

from __future__ import annotations

import hashlib
import inspect
from typing import TYPE_CHECKING, Any

from torch import nn

from neotta.adapters.registry import find, revision_of
from neotta.evaluate.records import content_key
from neotta.neo.statefile import fingerprint

if TYPE_CHECKING:
    from neotta.evaluate.bench import Bench
    from neotta.evaluate.plan import Run

LIBRARIES = ("torch", "torchvision", "timm", "transformers", "neotta")
"""Packages whose versions are on record; the code of any other module counts by its text."""


def run_key(bench: Bench, run: Run) -> str:
    return content_key(content(bench, run))


def content(bench: Bench, run: Run) -> dict[str, Any]:
    """Everything that the result of a run depends on; its hash is the key."""
    hashes, classes = bench.order_hashes(run), bench.data.class_indices
    count = 0 if "source" in run.options else find(run.method).declaration.source_images
    groups = [bench.data.groups(name) for name in bench.orders(run)[-1].domains]
    known = [None if number is None else number.tolist() for number in groups]
    return {
        **({"source": bench.clean_digest(count)} if count else {}),
        **({"separate": True} if run.separate_states else {}),
        **({"tuned": run.tuned} if run.tuned is not None else {}),
        **({"groups": content_key({"groups": known})} if any(known) else {}),
        **({} if bench.data.class_groups is None else {"class_groups": bench.data.class_groups.outputs}),
        "revision": revision_of(run.method),
        "weights": bench.weights,
        "preprocess": bench.data.preprocess.to_dict(),
        "classes": None if classes is None else [int(index) for index in classes],
        "manifests": [(manifest, place == 0, place == len(hashes) - 1) for place, manifest in enumerate(hashes)],
        "samples": run.samples,
        "seed": run.seed,
        "method": run.method,
        "options": bench.options(run),
    }


def identity(model: nn.Module) -> str:
    """A hash that differs where models may give different results.

    Two models with the same weights differ if a layer has another option (the eps of a norm, say), or if a class that
    is not part of a library was written again.
    """
    parts = [fingerprint(model.state_dict()), repr(model)]
    kinds = {type(module) for module in model.modules()}
    parts += sorted(_code(kind) for kind in kinds if kind.__module__.partition(".")[0] not in LIBRARIES)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _code(kind: type) -> str:
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):
        return f"{kind.__module__}.{kind.__qualname__}"

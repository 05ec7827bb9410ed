"""Compare an exported file, run by ONNX Runtime, with the model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from neotta.deploy.onnx_runtime import OnnxClassifier
from neotta.neo.find_head import logits_of
from neotta.neo.fold import folded
from neotta.neo.head import NEOHead
from neotta.neo.module_swap import ModuleSwap
from neotta.neo.statefile import Array
from neotta.neo.surgery import adaptation, heads

TOLERANCE = 1e-4
"""Maximum difference, relative to the largest logit if that is above 1."""

_SIZES = (1, 3, 2, 5)


def verify_folded(path: Path, model: nn.Module, images: Tensor) -> str | None:
    """Describe how a folded file differs from the model; None if it does not."""
    adapted = any(isinstance(module, NEOHead) for module in model.modules())
    with ModuleSwap(model, folded(model) if adapted else {}):
        return _compare(OnnxClassifier(path), model, images)


def verify_adaptive(path: Path, model: nn.Module, images: Tensor) -> str | None:
    """Describe how an adaptive file differs from the model on the same stream; None if it does not."""
    asked = adaptation(model)
    found = heads(model)
    fresh = {
        name: NEOHead.variant(neo, asked.method, asked.options, reference=neo.reference) for name, neo in found.items()
    }
    for name, neo in found.items():
        fresh[name].memory.load_state(neo.memory.state())
    classifier = OnnxClassifier(path)
    classifier.run_in_graph()
    with ModuleSwap(model, {neo: fresh[name] for name, neo in found.items()}):
        wrong = _compare(classifier, model, images)
    for name, neo in fresh.items():
        for entry, value in neo.memory.state().items():
            wrong = wrong or _difference(f"{name}.{entry}", classifier.state()[f"{name}.{entry}"], value)
    return wrong


def _compare(classifier: OnnxClassifier, model: nn.Module, images: Tensor) -> str | None:
    for batch in _batches(images):
        wrong = _difference(
            f"logits of a batch of {len(batch)}", classifier.predict(batch.cpu().numpy()), logits_of(model(batch))
        )
        if wrong:
            return wrong
    return None


def _batches(images: Tensor) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(1)
    for size in _SIZES:
        yield torch.randn(size, *images.shape[1:], generator=generator).to(images.device)


def _difference(what: str, got: Array, wanted: Tensor) -> str | None:
    reference = wanted.detach().cpu().double().numpy()
    difference = np.abs(got - reference).max()
    if difference <= TOLERANCE * max(1.0, np.abs(reference).max()):
        return None
    return f"by {difference:.2g} in {what}"

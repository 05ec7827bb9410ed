"""The Fisher information of a model's weights, and the loss that anchors them to the source by it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from neotta.adapters.gradient import GradientAdapter, all_finite
from neotta.errors import OptionError


def fisher_information(adapter: GradientAdapter[Any], images: Tensor, batch: int) -> dict[str, Tensor]:
    """The diagonal Fisher information of what is trained, at the weights as they are.

    It is the mean over batches of the squared gradient of a batch's mean cross-entropy against its own predictions:
    every batch counts alike, a shorter last one too, and so the batch size matters.

    Args:
        adapter: Whose trained tensors these are.
        images: Clean images of the source domain, (N, 3, H, W).
        batch: How many are run at a time.

    Raises:
        OptionError: It is not finite.
    """
    batches = torch.split(images, batch)
    total = [torch.zeros_like(tensor, requires_grad=False) for tensor in adapter.params.values()]
    for part in batches:
        with torch.enable_grad():
            logits = adapter.forward(part)
            grads = adapter.gradients(functional.cross_entropy(logits, logits.argmax(dim=1)))
        for kept, grad in zip(total, grads, strict=True):
            kept.addcmul_(grad, grad)
    if not all_finite(total):
        raise OptionError("option 'source' gives NaN or Inf as Fisher information: look for damaged source images")
    return {name: kept / len(batches) for name, kept in zip(adapter.params, total, strict=True)}


def distance(fisher: Mapping[str, Tensor], params: Mapping[str, Tensor], source: Mapping[str, Tensor]) -> Tensor:
    """The squared distance of weights from those of the source, weighted by the Fisher information; a scalar."""
    parts = [(weight * (params[name] - source[name].detach()).square()).sum() for name, weight in fisher.items()]
    return torch.stack(parts).sum()

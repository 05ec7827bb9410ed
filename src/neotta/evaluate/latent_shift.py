"""How a shift of the input moves embeddings: a part shared by all samples, a part per class, and a rest."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from neotta.errors import InputError


class Alignment(NamedTuple):
    """How close some vectors are to the clean embeddings of the same images, on average.

    Attributes:
        cosine: Mean cosine.
        norm_difference: Mean absolute difference of the norms.
    """

    cosine: float
    norm_difference: float


class LatentShift(NamedTuple):
    """The parts of the shift between clean and shifted embeddings of the same images, and what removing them does.

    Attributes:
        global_shift: Delta_G, (d,).
        class_shifts: Delta_c, (classes, d); zero for a class without samples.
        residuals: delta, (N, d).
        shifted: The shifted embeddings as they are.
        minus_global: Without Delta_G.
        minus_class: Without Delta_G and Delta_c.
        minus_residual: Without all three: the clean embeddings again.
        minus_mean: Without their own mean, which needs no clean data: this is NEO.
        dominant: For each sample, the dimension that changed most, (N,).
        cumulative: Share of samples that the k dimensions most often dominant account for, (d,).
    """

    global_shift: Tensor
    class_shifts: Tensor
    residuals: Tensor
    shifted: Alignment
    minus_global: Alignment
    minus_class: Alignment
    minus_residual: Alignment
    minus_mean: Alignment
    dominant: Tensor
    cumulative: Tensor


def latent_shift(clean: Tensor, shifted: Tensor, labels: Tensor, classes: int | None = None) -> LatentShift:
    """Take a latent shift apart.

    Args:
        clean: Embeddings of clean images, (N, d).
        shifted: Embeddings of the same images after the shift, (N, d).
        labels: Class indices, (N,).
        classes: Number of classes; by default one more than the largest label.
    """
    if clean.shape != shifted.shape or clean.dim() != 2 or labels.shape != clean.shape[:1] or len(clean) == 0:
        raise InputError(
            f"embeddings of the same images were expected, got {tuple(clean.shape)} clean, {tuple(shifted.shape)} "
            f"shifted and {tuple(labels.shape)} labels"
        )
    clean, shifted = clean.detach().double(), shifted.detach().double()
    change = shifted - clean
    global_shift = change.mean(0)
    classes = int(labels.max()) + 1 if classes is None else classes
    count = torch.bincount(labels, minlength=classes).unsqueeze(1)
    sums = torch.zeros(classes, clean.shape[1], dtype=torch.float64).index_add_(0, labels, change)
    class_shifts = torch.where(count > 0, sums / count.clamp(min=1) - global_shift, 0.0)
    of_class = class_shifts[labels]
    residuals = change - global_shift - of_class
    dominant = change.abs().argmax(dim=1)
    often = torch.bincount(dominant, minlength=clean.shape[1]).sort(descending=True).values
    return LatentShift(
        global_shift,
        class_shifts,
        residuals,
        alignment(clean, shifted),
        alignment(clean, shifted - global_shift),
        alignment(clean, shifted - global_shift - of_class),
        alignment(clean, shifted - global_shift - of_class - residuals),
        alignment(clean, shifted - shifted.mean(0)),
        dominant,
        often.cumsum(0) / len(clean),
    )


def alignment(clean: Tensor, vectors: Tensor) -> Alignment:
    """Mean cosine and mean difference of norms between rows, (N, d) each."""
    cosine = F.cosine_similarity(clean, vectors, dim=1).mean()
    return Alignment(float(cosine), float((clean.norm(dim=1) - vectors.norm(dim=1)).abs().mean()))


def centroid_cosines(centroids: Tensor) -> Tensor:
    """Cosine between each two of the centroids of some domains, (K, d) to (K, K)."""
    unit = F.normalize(centroids.double(), dim=1)
    return unit @ unit.T

"""Neural collapse: how far embeddings and head have come to the geometry that explains why re-centering works.

Definitions follow Wu & Papyan 2024 ("Linguistic Collapse") and, where they differ, the NEO paper's appendix. All need
labels and the unadapted embeddings.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from neotta.errors import InputError


class Collapse(NamedTuple):
    """The four properties; lower is better for the first three, higher for the fourth.

    Attributes:
        nc1: Within-class variability: the class-distance normalised variance, mean over pairs of classes.
        nc2: Distance of the class means from a simplex equiangular tight frame.
        nc3: Distance of head and class means from being dual to each other.
        nc4: Share of samples where the head agrees with the nearest class mean.
    """

    nc1: float
    nc2: float
    nc3: float
    nc4: float


class ClassStatistics(NamedTuple):
    """What the measures are made of, in float64, over the classes that have samples."""

    present: Tensor  # (K,) the classes
    means: Tensor  # (K, d)
    centred: Tensor  # (K, d) means minus their unweighted mean
    variance: Tensor  # (K,) mean squared distance to the class mean


def neural_collapse(embeddings: Tensor, labels: Tensor, weight: Tensor, bias: Tensor | None = None) -> Collapse:
    """NC1 to NC4 by the default definitions.

    Args:
        embeddings: (N, d).
        labels: Class indices, (N,).
        weight: Of the head, (C, d).
        bias: Of the head, (C,); without it NC4 ignores the bias.
    """
    statistics = class_statistics(embeddings, labels)
    head = weight.double()[statistics.present]
    return Collapse(
        cdnv(statistics),
        simplex_error(statistics),
        duality_error(statistics, head),
        agreement(embeddings, statistics, head, None if bias is None else bias.double()[statistics.present]),
    )


def class_statistics(embeddings: Tensor, labels: Tensor) -> ClassStatistics:
    """Means and variances of the classes that occur."""
    if embeddings.dim() != 2 or labels.shape != embeddings.shape[:1]:
        raise InputError(f"embeddings (N, d) and labels (N,) were expected, got {embeddings.shape}, {labels.shape}")
    embeddings = embeddings.detach().double()
    present, where, count = torch.unique(labels, return_inverse=True, return_counts=True)
    if len(present) < 2:
        raise InputError(f"neural collapse compares classes: at least two are needed, got {len(present)}")
    means = torch.zeros(len(present), embeddings.shape[1], dtype=torch.float64)
    means = means.index_add_(0, where, embeddings) / count.unsqueeze(1)
    residuals = embeddings - means[where]
    variance = torch.zeros(len(present), dtype=torch.float64).index_add_(0, where, residuals.square().sum(1)) / count
    return ClassStatistics(present, means, means - means.mean(0), variance)


def cdnv(statistics: ClassStatistics) -> float:
    """NC1: mean over pairs of classes of their mean variance over the squared distance of their means."""
    first, second = torch.triu_indices(len(statistics.means), len(statistics.means), offset=1)
    variance = (statistics.variance[first] + statistics.variance[second]) / 2
    distance = (statistics.means[first] - statistics.means[second]).square().sum(1)
    return float((variance / distance).mean())


def simplex_error(statistics: ClassStatistics) -> float:
    """NC2: Frobenius distance of the normalised Gram matrix of class means from that of a simplex."""
    return _frame_error(statistics.centred @ statistics.centred.T)


def duality_error(statistics: ClassStatistics, weight: Tensor) -> float:
    """NC3: the same distance for the products of head and class means; `weight` is (K, d)."""
    return _frame_error(weight.double() @ statistics.centred.T)


def agreement(embeddings: Tensor, statistics: ClassStatistics, weight: Tensor, bias: Tensor | None) -> float:
    """NC4: how often the head's choice is the class with the nearest mean."""
    embeddings = embeddings.detach().double()
    logits = embeddings @ weight.double().T
    if bias is not None:
        logits = logits + bias.double()
    nearest = torch.cdist(embeddings, statistics.means).argmin(dim=1)
    return float((logits.argmax(dim=1) == nearest).double().mean())


def _frame_error(gram: Tensor) -> float:
    classes = len(gram)
    simplex = (torch.eye(classes, dtype=torch.float64) - 1.0 / classes) / (classes - 1) ** 0.5
    return float((gram / gram.norm() - simplex).norm())

"""Embeddings of the same images in every domain, and what the shift between clean and shifted ones is made of."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from neotta.errors import DataError, InputError
from neotta.evaluate.bench import Bench
from neotta.evaluate.domains import CLEAN
from neotta.evaluate.plan import Run
from neotta.paper.evidence import Evidence
from neotta.paper.study import Setting

CLEAN_NEEDED = "clean and shifted versions of the same images are needed: give clean images and let them be corrupted"
VECTORS = {
    "shifted": "shifted (h~)",
    "minus_global": "minus the global shift",
    "minus_class": "minus global and class shift",
    "minus_residual": "minus all three parts",
    "minus_mean": "minus their own mean (NEO)",
}
"""What is compared with the clean embeddings, by its name in `LatentShift`."""


def same_images(setting: Setting, domain: str, samples: int | None = None) -> Run:
    """A run that adapts to the same images in every domain, in the same order: that of the published split.

    It sees all images that runs on held-out samples use, so that most are encoded already, or `samples`.
    """
    study = setting.study
    scored = study.held_out_samples
    seen = setting.images if scored < 0 else min(setting.images, setting.samples + scored)
    return Run(
        method="none",
        order="hold-out",
        domains=(domain,),
        samples=seen if samples is None else samples,
        seed=study.seeds[0],
        batch_size=study.batch_size,
    )


def embeddings(bench: Bench, run: Run) -> tuple[Tensor, Tensor, NDArray[np.int64]]:
    """Of the samples that a run adapts to, in its order, those that can be read.

    Returns:
        Embeddings (N, d), labels (N,), and places in the order (N,).
    """
    index, dataset = bench.orders(run)[0].index, bench.data.dataset(run.domain)
    rows, readable = bench.embeddings.get(dataset, index)
    if dataset.labels is None:
        raise DataError(f"the images of {run.domain!r} have no labels, which this needs")
    return rows, torch.from_numpy(dataset.labels[index[readable]]).long(), readable


def pair(bench: Bench, clean: Run, shifted: Run) -> tuple[Tensor, Tensor, Tensor]:
    """Clean and shifted embeddings, (N, d) each, of the images that can be read in both domains, and labels, (N,)."""
    (first, labels, here), (second, others, there) = (embeddings(bench, run) for run in (clean, shifted))
    _, mine, theirs = (torch.from_numpy(each) for each in np.intersect1d(here, there, return_indices=True))
    index, other = (bench.orders(run)[0].index for run in (clean, shifted))
    if not np.array_equal(index, other) or not torch.equal(labels[mine], others[theirs]):
        raise DataError(f"{clean.domain!r} and {shifted.domain!r} do not hold the same images in the same order")
    return first[mine], second[theirs], labels[mine]


def shifts(evidence: Evidence, setting: Setting) -> dict[str, dict[str, Any]]:
    """What the shift of each domain is made of, recorded so that it is computed once.

    By domain: the numbers of `samples` and `dimensions`, `cumulative` (the share of samples that the k dimensions
    most often changed most account for, up to the k that account for all), and under each name of `VECTORS` the
    mean cosine and the mean difference of norms to the clean embeddings.
    """
    if not setting.clean:
        raise DataError(CLEAN_NEEDED)
    clean = same_images(setting, CLEAN)
    by_domain: dict[str, dict[str, Any]] = {}
    for domain in setting.domains:
        runs = [clean, same_images(setting, domain)]
        compute = functools.partial(_measure, runs)
        by_domain[domain] = evidence.analysis("latent-shift", setting, runs, compute)
    return by_domain


def _measure(runs: list[Run], bench: Bench) -> dict[str, Any]:
    shift = latent_shift(*pair(bench, *runs))
    needed = int((shift.cumulative < 1.0 - 1e-9).sum()) + 1
    return {
        "samples": len(shift.residuals),
        "dimensions": len(shift.cumulative),
        "cumulative": [round(value, 6) for value in shift.cumulative[:needed].tolist()],
        **{name: list(getattr(shift, name)) for name in VECTORS},
    }


class Alignment(NamedTuple):
    """How close some vectors are to the clean embeddings of the same images, on average."""

    cosine: float
    norm_difference: float  # absolute


class LatentShift(NamedTuple):
    """The parts of the shift between clean and shifted embeddings of the same images, and what removing them does."""

    global_shift: Tensor  # Delta_G, (d,)
    class_shifts: Tensor  # Delta_c, (classes, d); zero for a class without samples
    residuals: Tensor  # delta, (N, d)
    shifted: Alignment  # of the shifted embeddings as they are
    minus_global: Alignment  # without Delta_G
    minus_class: Alignment  # without Delta_G and Delta_c
    minus_residual: Alignment  # without all three: the clean embeddings again
    minus_mean: Alignment  # without their own mean, which needs no clean data: this is NEO
    dominant: Tensor  # for each sample, the dimension that changed most, (N,)
    cumulative: Tensor  # share of samples that the k dimensions most often dominant account for, (d,)


def latent_shift(clean: Tensor, shifted: Tensor, labels: Tensor, classes: int | None = None) -> LatentShift:
    """Take a latent shift apart."""
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
        _alignment(clean, shifted),
        _alignment(clean, shifted - global_shift),
        _alignment(clean, shifted - global_shift - of_class),
        _alignment(clean, shifted - global_shift - of_class - residuals),
        _alignment(clean, shifted - shifted.mean(0)),
        dominant,
        often.cumsum(0) / len(clean),
    )


def _alignment(clean: Tensor, vectors: Tensor) -> Alignment:
    cosine = F.cosine_similarity(clean, vectors, dim=1).mean()
    return Alignment(float(cosine), float((clean.norm(dim=1) - vectors.norm(dim=1)).abs().mean()))

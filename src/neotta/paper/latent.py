"""Embeddings of the same images in every domain, and what the shift between clean and shifted ones is made of."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from neotta.errors import DataError
from neotta.evaluate.domains import CLEAN
from neotta.evaluate.latent_shift import LatentShift, latent_shift
from neotta.evaluate.plan import Run
from neotta.evaluate.workbench import Workbench
from neotta.paper.evidence import Evidence
from neotta.paper.study import Setting

VECTORS = {
    "shifted": "shifted (h~)",
    "minus_global": "minus the global shift",
    "minus_class": "minus global and class shift",
    "minus_residual": "minus all three parts",
    "minus_mean": "minus their own mean (NEO)",
}
"""What is compared with the clean embeddings, by its name in `LatentShift`."""


def same_images(setting: Setting, domain: str, samples: int | None = None) -> Run:
    """A run that adapts to the same images in every domain, in the same order.

    The published split makes them so: its order depends on the seed and the number of images alone.

    Args:
        setting: The subject.
        domain: Where to see the images.
        samples: Number of images; by default all that runs on held-out samples use, so that most are encoded already.
    """
    study = setting.study
    seen = setting.images if study.evaluate < 0 else min(setting.images, setting.samples + study.evaluate)
    return Run(
        method="none",
        protocol="hold-out",
        domains=(domain,),
        samples=seen if samples is None else samples,
        seed=study.seeds[0],
        batch_size=study.batch_size,
    )


def pair(bench: Workbench, clean: Run, shifted: Run) -> tuple[Tensor, Tensor, Tensor]:
    """Clean and shifted embeddings of the same images, (N, d) each, and their labels, (N,).

    Images that cannot be read in either domain are left out of both.

    Raises:
        DataError: The domains do not hold the same images, or have no labels.
    """
    index = bench.orders(clean)[0].index
    names = clean.domains[0], shifted.domains[0]
    here, there = (bench.data.dataset(name) for name in names)
    if here.labels is None or there.labels is None:
        raise DataError(f"the images of {names[1]!r} have no labels, which this needs")
    same = np.array_equal(index, bench.orders(shifted)[0].index)
    if not same or not np.array_equal(here.labels[index], there.labels[index]):
        raise DataError(f"{names[0]!r} and {names[1]!r} do not hold the same images in the same order")
    first, readable = bench.embeddings.get(here, index)
    second, also_readable = bench.embeddings.get(there, index)
    both, mine, theirs = np.intersect1d(readable, also_readable, return_indices=True)
    labels = torch.from_numpy(here.labels[index[both]]).long()
    return first[torch.from_numpy(mine)], second[torch.from_numpy(theirs)], labels


def shifts(evidence: Evidence, setting: Setting) -> dict[str, dict[str, Any]]:
    """What the shift of each domain is made of, recorded so that it is computed once.

    Returns:
        For each domain its numbers of `samples` and `dimensions`, `cumulative` (the share of samples that the k
        dimensions most often changed most account for, up to the k that account for all), and under each name of
        `VECTORS` the mean cosine and the mean difference of norms to the clean embeddings.

    Raises:
        DataError: There are no clean versions of the same images.
    """
    if not setting.clean:
        raise DataError(
            "clean and shifted versions of the same images are needed: give clean images and let them be corrupted"
        )
    clean = same_images(setting, CLEAN)
    found: dict[str, dict[str, Any]] = {}
    for domain in setting.domains:
        shifted = same_images(setting, domain)

        def compute(bench: Workbench, shifted: Run = shifted) -> dict[str, Any]:
            return _numbers(latent_shift(*pair(bench, clean, shifted)))

        found[domain] = evidence.analysis("latent-shift", setting, [clean, shifted], compute)
    return found


def _numbers(shift: LatentShift) -> dict[str, Any]:
    """What of it is kept: a few hundred numbers instead of thousands of vectors."""
    needed = int((shift.cumulative < 1.0 - 1e-9).sum()) + 1
    return {
        "samples": len(shift.residuals),
        "dimensions": len(shift.cumulative),
        "cumulative": [round(value, 6) for value in shift.cumulative[:needed].tolist()],
        **{name: list(getattr(shift, name)) for name in VECTORS},
    }


def dimensions_for(shift: dict[str, Any], share: float) -> int:
    """Number of dimensions that account for a share of the samples."""
    return int(np.searchsorted(np.asarray(shift["cumulative"]), share - 1e-6)) + 1

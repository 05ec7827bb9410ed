"""What brings shifted embeddings back to the clean ones: cosine and norm without each part of the shift."""

from __future__ import annotations

import itertools
import statistics
from typing import Any

from neotta.paper.finding import counted
from neotta.paper.item import Case, item
from neotta.paper.latent import VECTORS, shifts
from neotta.paper.tables import single
from neotta.paper.words import listed
from neotta.report.grids import grid

PUBLISHED = {
    "shifted": (-0.44, 4.33),
    "minus_global": (0.51, 3.65),
    "minus_class": (0.64, 5.47),
    "minus_residual": (1.00, 0.00),
    "minus_mean": (0.49, 3.64),
}
"""Cosine and difference of norms for Gaussian noise of severity 5, ViT-Base, 50 000 samples."""
MEASURES = ("cosine", "difference of norms")
NEARLY = 0.9
"""Which part of the gain in cosine counts as nearly all of it; the paper's numbers give 0.98."""
FEW = 10
"""Images per class below which the class shift cannot be told from that of single samples."""


@item(
    order=4,
    name="alignment",
    title="Removing the mean is nearly as good as knowing the shift",
    place="Figure 3, right",
    question="Which part of a shift has to be removed to get the clean embeddings back?",
    claim=(
        "The global shift accounts for the largest part of the lost cosine; removing the mean, which needs no clean "
        "data, does nearly as much and brings the norms closest to the clean ones, while the class shift drives them "
        "apart."
    ),
)
def show(case: Case) -> None:
    """Compare with the clean embeddings of the same images."""
    found = shifts(case.evidence, case.setting)
    average: dict[str, Any] = {
        name: [statistics.fmean(shift[name][place] for shift in found.values()) for place in (0, 1)] for name in VECTORS
    }
    noise = next((domain for domain in found if domain.split("/")[0] == "gaussian_noise"), None)
    measured, what = (average, "mean over the domains") if noise is None else (found[noise], noise)
    for place, measure in enumerate(MEASURES):
        heading = f"{measure} to the clean embeddings"
        case.beside(
            heading,
            {VECTORS[name]: values[place] for name, values in PUBLISHED.items()},
            {VECTORS[name]: single(measured[name][place]) for name in VECTORS},
            corner="vector",
            digits=2,
            caption=f"Published: Gaussian noise, ViT-Base, ImageNet-C. Measured: {what}. Norms depend on the model.",
        )
        rows = {
            domain: {name: shift[name][place] for name in VECTORS}
            for domain, shift in {**found, "average": average}.items()
        }
        case.table(
            f"{heading}, per domain",
            grid("domain", list(VECTORS.values()), {d: [f"{v:.2f}" for v in row.values()] for d, row in rows.items()}),
            [{"domain": domain, **row} for domain, row in rows.items()],
            f"Mean {measure} between each vector and the clean embedding of the same image.",
        )
    facts = _facts(average)
    case.say(_answer(average, facts), counted(facts.values()))
    count = min(shift["samples"] for shift in found.values())
    per_class = count / max(1, case.setting.classes)
    case.note(f"{case.title}: {count} images, {per_class:.1f} per class (the paper: 50 000, 50 per class).")
    if per_class < FEW:
        case.note(
            f"{case.title}: with so few images per class, the class shift takes up much of what belongs to the "
            "single samples, and the cosine without it comes out too high."
        )


def _facts(average: dict[str, list[float]]) -> dict[str, bool]:
    """The parts of the claim, and whether each is true."""
    cosine, norm = ({name: values[place] for name, values in average.items()} for place in (0, 1))
    steps = [cosine[name] for name in ("shifted", "minus_global", "minus_class", "minus_residual")]
    gains = [after - before for before, after in itertools.pairwise(steps)]
    # without all parts of the shift the clean embeddings are left: nothing to compare with
    closest = min(norm[name] for name in VECTORS if name != "minus_residual")
    nearly = gains[0] > 0 and cosine["minus_mean"] - steps[0] >= NEARLY * gains[0]
    return {
        "the global shift is the largest part": gains[0] > 0 and gains[0] == max(gains),
        f"removing the mean does nearly as much ({100 * NEARLY:.0f} %)": nearly,
        "removing the mean leaves the norms closest": norm["minus_mean"] == closest,
        "the class shift drives them apart": norm["minus_class"] > norm["minus_global"],
    }


def _answer(average: dict[str, list[float]], facts: dict[str, bool]) -> str:
    (before, norm), (global_, global_norm), (mean, mean_norm) = (
        average[name] for name in ("shifted", "minus_global", "minus_mean")
    )
    parts = {
        words: [fact for fact, true in facts.items() if true == kind]
        for words, kind in (("what holds of the claim", True), ("what does not", False))
    }
    said = "; ".join(f"{words}: {listed(part)}" for words, part in parts.items() if part)
    return (
        f"mean over the domains, the cosine to the clean embeddings goes from {before:.2f} to {global_:.2f} without "
        f"the global shift and to {mean:.2f} without the mean alone, the difference of norms from {norm:.2f} to "
        f"{global_norm:.2f} and {mean_norm:.2f} ({said})"
    )

"""What brings shifted embeddings back to the clean ones: cosine and norm without each part of the shift."""

from __future__ import annotations

import itertools
import math
from typing import Any

from neotta.evaluate.metrics import Interval
from neotta.paper import comparing
from neotta.paper.evidence import Evidence
from neotta.paper.item import Finding, Holds, Item, Table
from neotta.paper.latent import VECTORS, shifts, where_possible
from neotta.paper.study import Setting
from neotta.report.grids import Entry, Grid

PUBLISHED = {
    "shifted": (-0.44, 4.33),
    "minus_global": (0.51, 3.65),
    "minus_class": (0.64, 5.47),
    "minus_residual": (1.00, 0.00),
    "minus_mean": (0.49, 3.64),
}
"""Cosine and difference of norms for Gaussian noise of severity 5, ViT-Base, 50 000 samples."""
ALL = "minus_residual"
"""Without all parts of the shift the clean embeddings are left: nothing to compare with."""
WORDS = {True: "what holds of the claim", False: "what does not"}
MEASURES = ("cosine", "difference of norms")
NEARLY = 0.9
"""Which part of the gain in cosine counts as nearly all of it; the paper's numbers give 0.98."""


class Alignment(Item):
    """Figure 3, right."""

    name = "table-alignment"
    title = "Removing the mean is nearly as good as knowing the shift"
    place = "Figure 3, right"
    question = "Which part of a shift has to be removed to get the clean embeddings back?"
    claim = (
        "The global shift accounts for the largest part of the lost cosine; removing the mean, which needs no clean "
        "data, does nearly as much and brings the norms closest to the clean ones, while the class shift drives them "
        "apart."
    )

    def find(self, evidence: Evidence) -> Finding:
        """Compare with the clean embeddings of the same images."""
        finding = Finding()
        for setting, found in where_possible(evidence, finding, shifts):
            mean = {name: _mean([shift[name] for shift in found.values()]) for name in VECTORS}
            noise = next((domain for domain in found if domain.split("/")[0] == "gaussian_noise"), None)
            measured, what = (mean, "mean over the domains") if noise is None else (found[noise], noise)
            for place, measure in enumerate(MEASURES):
                finding.parts.append(_beside(setting, place, measure, measured, what))
                finding.parts.append(_table(setting, place, measure, {**found, "average": mean}))
            finding.say(_answer(setting, mean), _holds(mean))
            finding.notes += _samples(setting, found)
        return finding


def _mean(pairs: list[list[float]]) -> list[float]:
    return [math.fsum(column) / len(pairs) for column in zip(*pairs, strict=True)]


def _beside(setting: Setting, place: int, measure: str, measured: dict[str, Any], what: str) -> Table:
    return comparing.beside(
        f"{setting.title}: {measure} to the clean embeddings, published and measured",
        {VECTORS[name]: values[place] for name, values in PUBLISHED.items()},
        {VECTORS[name]: Interval(measured[name][place], math.nan, 1) for name in VECTORS},
        corner="vector",
        digits=2,
        caption=f"Published: Gaussian noise, ViT-Base, ImageNet-C. Measured: {what}. Norms depend on the model.",
    )


def _table(setting: Setting, place: int, measure: str, found: dict[str, dict[str, Any]]) -> Table:
    """Domains by vectors."""
    shown = [(domain, tuple(Entry(f"{shift[name][place]:.2f}") for name in VECTORS)) for domain, shift in found.items()]
    return Table(
        f"{setting.title}: {measure} to the clean embeddings, per domain",
        Grid("domain", tuple(VECTORS.values()), tuple(shown)),
        [{"domain": domain, **{name: shift[name][place] for name in VECTORS}} for domain, shift in found.items()],
        f"Mean {measure} between each vector and the clean embedding of the same image.",
    )


def _claims(mean: dict[str, list[float]]) -> dict[str, bool]:
    """The parts of the claim, and whether each holds."""
    cosine, norm = ({name: values[place] for name, values in mean.items()} for place in (0, 1))
    steps = [cosine[name] for name in ("shifted", "minus_global", "minus_class", "minus_residual")]
    gains = [after - before for before, after in itertools.pairwise(steps)]
    closest = min(norm[name] for name in VECTORS if name != ALL)
    return {
        "the global shift is the largest part": gains[0] > 0 and gains[0] == max(gains),
        f"removing the mean does nearly as much ({100 * NEARLY:.0f} %)": gains[0] > 0
        and cosine["minus_mean"] - steps[0] >= NEARLY * gains[0],
        "removing the mean leaves the norms closest": norm["minus_mean"] == closest,
        "the class shift drives them apart": norm["minus_class"] > norm["minus_global"],
    }


def _answer(setting: Setting, mean: dict[str, list[float]]) -> str:
    cosine, norm = ({name: values[place] for name, values in mean.items()} for place in (0, 1))
    said: dict[bool, list[str]] = {True: [], False: []}
    for claim, holds in _claims(mean).items():
        said[holds].append(claim)
    verdicts = [f"{words}: {comparing.listed(said[kind])}" for kind, words in WORDS.items() if said[kind]]
    return (
        f"On {setting.title}, mean over the domains, the cosine to the clean embeddings goes from "
        f"{cosine['shifted']:.2f} to {cosine['minus_global']:.2f} without the global shift and to "
        f"{cosine['minus_mean']:.2f} without the mean alone, the difference of norms from {norm['shifted']:.2f} "
        f"to {norm['minus_global']:.2f} and {norm['minus_mean']:.2f} ({'; '.join(verdicts)})."
    )


def _holds(mean: dict[str, list[float]]) -> Holds:
    found = _claims(mean).values()
    return "yes" if all(found) else "partly" if any(found) else "no"


def _samples(setting: Setting, found: dict[str, dict[str, Any]]) -> list[str]:
    count = min(shift["samples"] for shift in found.values())
    per_class = count / max(1, setting.classes)
    notes = [f"{setting.title}: {count} images, {per_class:.1f} per class (the paper: 50 000, 50 per class)."]
    if per_class < 10:
        notes.append(
            f"{setting.title}: with so few images per class, the class shift takes up much of what belongs to the "
            "single samples, and the cosine without it comes out too high."
        )
    return notes

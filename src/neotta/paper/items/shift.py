"""What a shift does to embeddings: how few dimensions it changes most, and what brings them back to the clean ones."""

from __future__ import annotations

import itertools
import statistics
from typing import Any

import numpy as np

from neotta.paper.claims import NEARLY, counted, family, listed, short_names
from neotta.paper.item import Report, item
from neotta.paper.latent import VECTORS, shifts
from neotta.paper.tables import single
from neotta.report.charts import Series, share_chart
from neotta.report.grids import grid

LIMIT = 50 / 768
"""The paper: fewer than 50 of 768 dimensions account for 80 % of the samples."""
CONTRAST = 20 / 768
"""The paper: under contrast, fewer than 20 of 768 account for 95 % of the samples."""
SHOWN = 250 / 768
"""The part of the dimensions that the paper's figure shows."""


@item(
    title="A shift changes a few dimensions most",
    place="Figure 3, left",
    claim=(
        "Under every corruption, 80 % of the samples have their largest change in fewer than 50 of 768 dimensions; "
        "under contrast, 95 % of them in fewer than 20."
    ),
)
def dimensions(report: Report) -> None:
    """In how many dimensions does a shift move embeddings most?"""
    by_domain = shifts(report.evidence, report.setting)
    first = next(iter(by_domain.values()))
    _draw(report, by_domain)
    counts = {domain: [_needed(shift, share) for share in (0.8, 0.95)] for domain, shift in by_domain.items()}
    shown = {
        domain: [f"{count} ({100 * count / by_domain[domain]['dimensions']:.1f} %)" for count in both]
        for domain, both in counts.items()
    }
    report.table(
        "dimensions that have the largest change",
        grid("domain", ("of 80 % of samples", "of 95 % of samples"), shown),
        [
            {"domain": domain, "for_80_percent": both[0], "for_95_percent": both[1]}
            | {name: by_domain[domain][name] for name in ("dimensions", "samples")}
            for domain, both in counts.items()
        ],
        f"Of {first['dimensions']} dimensions, from {first['samples']} samples. The paper, under every corruption: "
        f"fewer than 50 of 768 ({100 * LIMIT:.1f} %) for 80 %; under contrast fewer than 20 "
        f"({100 * CONTRAST:.1f} %) for 95 %.",
    )
    shares = {domain: both[0] / by_domain[domain]["dimensions"] for domain, both in counts.items()}
    contrast = next((domain for domain in by_domain if domain.split("/")[0] == "contrast"), None)
    facts = [share < LIMIT for share in shares.values()]
    worst = max(shares, key=lambda domain: shares[domain])
    where = "every shift" if all(facts) else f"{sum(facts) or 'none'} of the {len(facts)} shifts"
    answer = (
        f"80 % of the samples have their largest change in fewer than {100 * LIMIT:.1f} % of the dimensions (the "
        f"paper's 50 of 768) under {where}; at most, under {worst}, it takes {counts[worst][0]} of "
        f"{by_domain[worst]['dimensions']} ({100 * shares[worst]:.1f} %)"
    )
    if contrast is not None:
        share = counts[contrast][1] / by_domain[contrast]["dimensions"]
        facts.append(share < CONTRAST)
        answer += (
            f"; under contrast, 95 % of the samples have it in {counts[contrast][1]} ({100 * share:.1f} %), "
            f"{'fewer' if share < CONTRAST else 'not fewer'} than the paper's 20 of 768"
        )
    report.say(answer, counted(facts))
    if first["samples"] < first["dimensions"]:
        report.note(
            f"{report.title}: {first['samples']} samples cannot have their largest change in more than as many of "
            f"the {first['dimensions']} dimensions, so these counts are low."
        )


def _needed(shift: dict[str, Any], share: float) -> int:
    return int(np.searchsorted(np.asarray(shift["cumulative"]), share - 1e-6)) + 1


def _draw(report: Report, by_domain: dict[str, dict[str, Any]]) -> None:
    names = short_names(list(by_domain))
    series = {
        names[domain]: Series(
            [0.0, *(100 * (place + 1) / shift["dimensions"] for place in range(len(shift["cumulative"])))],
            [0.0, *(100 * share for share in shift["cumulative"])],
        )
        for domain, shift in by_domain.items()
    }
    report.figure(
        "dimensions",
        "share of samples whose largest change is in the k most frequent dimensions",
        share_chart(
            series,
            {names[domain]: family(domain) for domain in by_domain},
            x="dimensions, the most frequent first (% of all)",
            y="samples (%)",
            guide=(100 * LIMIT, 80.0, "50 of 768"),
            limit=100 * SHOWN,
        ),
        [
            {"domain": domain, "dimensions": place + 1, "share": share}
            for domain, shift in by_domain.items()
            for place, share in enumerate(shift["cumulative"])
        ],
        "A line that rises early: few dimensions carry the shift. Grey lines: the paper's 80 % and 50 of 768.",
        height=4.0,
    )


# ---- alignment

PUBLISHED = {
    "shifted": (-0.44, 4.33),
    "minus_global": (0.51, 3.65),
    "minus_class": (0.64, 5.47),
    "minus_residual": (1.00, 0.00),
    "minus_mean": (0.49, 3.64),
}
"""Cosine and difference of norms for Gaussian noise of severity 5, ViT-Base, 50 000 samples."""
MEASURES = ("cosine", "difference of norms")
FEW = 10
"""Images per class below which the class shift cannot be told from that of single samples."""


@item(
    title="Removing the mean is nearly as good as knowing the shift",
    place="Figure 3, right",
    claim=(
        "The global shift accounts for the largest part of the lost cosine; removing the mean, which needs no clean "
        "data, does nearly as much and brings the norms closest to the clean ones, while the class shift drives them "
        "apart."
    ),
)
def alignment(report: Report) -> None:
    """Which part of a shift has to be removed to get the clean embeddings back?"""
    by_domain = shifts(report.evidence, report.setting)
    average: dict[str, Any] = {
        name: [statistics.fmean(shift[name][place] for shift in by_domain.values()) for place in (0, 1)]
        for name in VECTORS
    }
    noise = next((domain for domain in by_domain if domain.split("/")[0] == "gaussian_noise"), None)
    measured, what = (average, "mean over the domains") if noise is None else (by_domain[noise], noise)
    for place, measure in enumerate(MEASURES):
        heading = f"{measure} to the clean embeddings"
        report.beside(
            heading,
            {VECTORS[name]: values[place] for name, values in PUBLISHED.items()},
            {VECTORS[name]: single(measured[name][place]) for name in VECTORS},
            corner="vector",
            digits=2,
            caption=f"Published: Gaussian noise, ViT-Base, ImageNet-C. Measured: {what}. Norms depend on the model.",
        )
        rows = {
            domain: {name: shift[name][place] for name in VECTORS}
            for domain, shift in {**by_domain, "average": average}.items()
        }
        report.table(
            f"{heading}, per domain",
            grid("domain", list(VECTORS.values()), {d: [f"{v:.2f}" for v in row.values()] for d, row in rows.items()}),
            [{"domain": domain, **row} for domain, row in rows.items()],
            f"Mean {measure} between each vector and the clean embedding of the same image.",
        )
    count = min(shift["samples"] for shift in by_domain.values())
    per_class = count / max(1, report.setting.classes)
    facts = _facts(average, classes=per_class >= FEW)
    held, not_held = ([fact for fact, true in facts.items() if true == kind] for kind in (True, False))
    parts = (("what holds of the claim", held), ("what does not", not_held))
    (before, norm), (global_, global_norm), (mean, mean_norm) = (
        average[name] for name in ("shifted", "minus_global", "minus_mean")
    )
    report.say(
        f"mean over the domains, the cosine to the clean embeddings goes from {before:.2f} to {global_:.2f} without "
        f"the global shift and to {mean:.2f} without the mean alone, the difference of norms from {norm:.2f} to "
        f"{global_norm:.2f} and {mean_norm:.2f} "
        f"({'; '.join(f'{words}: {listed(part)}' for words, part in parts if part)})",
        counted(facts.values()),
    )
    report.note(f"{report.title}: {count} images, {per_class:.1f} per class (the paper: 50 000, 50 per class).")
    if per_class < FEW:
        report.note(
            f"{report.title}: with so few images per class, the class shift takes up much of what belongs to the "
            "single samples, and the cosine without it comes out too high: whether it drives the norms apart is not "
            "judged."
        )


def _facts(average: dict[str, list[float]], *, classes: bool) -> dict[str, bool]:
    cosine, norm = ({name: values[place] for name, values in average.items()} for place in (0, 1))
    steps = [cosine[name] for name in ("shifted", "minus_global", "minus_class", "minus_residual")]
    gains = [after - before for before, after in itertools.pairwise(steps)]
    # without all parts of the shift the clean embeddings are left: nothing to compare with
    closest = min(norm[name] for name in VECTORS if name != "minus_residual")
    nearly = gains[0] > 0 and cosine["minus_mean"] - steps[0] >= NEARLY * gains[0]
    return {
        "the global shift is the largest part": gains[0] > 0 and gains[0] == max(gains),
        f"removing the mean does nearly as much ({100 * NEARLY:.0f} %) as removing the global shift": nearly,
        "removing the mean leaves the norms closest": norm["minus_mean"] == closest,
        **({"the class shift drives them apart": norm["minus_class"] > norm["minus_global"]} if classes else {}),
    }

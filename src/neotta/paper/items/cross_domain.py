"""The centroid of one domain on the images of another."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from typing import Any

import torch

from neotta.evaluate.latent_shift import centroid_cosines
from neotta.evaluate.plan import Plan
from neotta.evaluate.records import Record
from neotta.evaluate.workbench import Workbench
from neotta.paper.finding import Holds, counted
from neotta.paper.item import SEVERAL, Case, Item, Skip
from neotta.paper.latent import same_images
from neotta.paper.study import Setting
from neotta.paper.words import family, listed, short_names
from neotta.report.diagrams import heat_chart

Matrix = dict[tuple[str, str], float]
"""A number for each pair of a source and a target domain."""

ALIKE = ("noise", "blur")
"""The families of which the paper says that their members share a centroid."""


class CrossDomain(Item):
    """Figure 6."""

    name = "cross-domain"
    title = "One domain's centroid on another"
    place = "Figure 6"
    question = "Does the centroid of one corruption serve another?"
    claim = (
        "It does among corruptions that are alike, such as noises or blurs: there the gain in accuracy and the cosine "
        "between centroids are high."
    )

    def plans(self, setting: Setting) -> list[Plan]:
        """Every domain's centroid, frozen, on every domain; one seed."""
        if len(setting.domains) < 2:
            return []
        return [setting.plan("none", "neo", protocol="cross-domain", seeds=setting.study.seeds[:1])]

    def show(self, case: Case) -> None:
        """Fill the two matrices, and compare pairs within a family with others."""
        if len(case.setting.domains) < 2:
            raise Skip(SEVERAL)
        gains = changes(case.records)
        if not gains:
            raise Skip
        cosines, samples = _cosines(case), case.setting.samples
        _draw(
            case,
            gains,
            ("accuracy", "change in accuracy with the centroid of another domain", "change in accuracy (points)"),
            f"Points over no adaptation on the target's images, with the centroid of {samples} images of the source. "
            f"Seed {case.setting.study.seeds[0]}.",
            digits=1,
            centre=0.0,
        )
        _draw(
            case,
            cosines,
            ("cosine", "cosine between the centroids of two domains", "cosine"),
            f"Centroids of the same {samples} images in each domain.",
            digits=2,
        )
        case.say(_answer(gains, cosines), _holds(gains, cosines))


def changes(records: Iterable[Record]) -> Matrix:
    """NEO's accuracy minus that without adaptation, on the same images, by source and target."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for record in records:
        if record.get("status") == "ok" and record["metrics"].get("top1") is not None:
            place = (record["source_domain"], record["domain"])
            found.setdefault(place, {})[record["method"]] = record["metrics"]["top1"]
    return {place: each["neo"] - each["none"] for place, each in found.items() if {"neo", "none"} <= each.keys()}


def _cosines(case: Case) -> Matrix:
    """Cosines between the centroids that the runs subtract."""
    domains = case.setting.domains
    runs = [same_images(case.setting, domain, case.setting.samples) for domain in domains]

    def compute(bench: Workbench) -> Any:
        means = []
        for run in runs:
            dataset, index = bench.data.dataset(run.domains[0]), bench.orders(run)[0].index
            means.append(bench.embeddings.get(dataset, index)[0].double().mean(0))
        return centroid_cosines(torch.stack(means)).tolist()

    rows = case.evidence.analysis("centroid-cosines", case.setting, runs, compute)
    pairs = [(source, target) for source in domains for target in domains]
    return dict(zip(pairs, (value for row in rows for value in row), strict=True))


def _draw(case: Case, matrix: Matrix, words: tuple[str, str, str], caption: str, **how: Any) -> None:
    """Add a matrix as a figure; `words` are its name, its heading and what its numbers are."""
    (name, heading, label), domains = words, case.setting.domains
    values = [[matrix.get((source, target), math.nan) for target in domains] for source in domains]
    x, y = "target: where the images are from", "source: where the centroid is from"
    case.figure(
        f"cross domain {name}",
        heading,
        heat_chart(values, list(short_names(domains).values()), label, x=x, y=y, **how),
        [
            {"source": source, "target": target, "cosine" if name == "cosine" else "gain": value}
            for (source, target), value in matrix.items()
        ],
        caption,
        height=max(3.4, 1.6 + 0.27 * len(domains)),
    )


def _groups(matrix: Matrix) -> dict[str, float]:
    """Means over sources for targets that are noises or blurs: themselves, others alike, and other families."""
    found: dict[str, list[float]] = {"own": [], "alike": [], "other": []}
    for (source, target), value in matrix.items():
        if family(target) in ALIKE:
            kind = "own" if source == target else "alike" if family(source) == family(target) else "other"
            found[kind].append(value)
    return {kind: statistics.fmean(values) for kind, values in found.items() if values}


def _answer(gains: Matrix, cosines: Matrix) -> str:
    foreign = [value for (source, target), value in gains.items() if source != target]
    helped = f"a foreign centroid helps in {sum(value > 0 for value in foreign)} of {len(foreign)} pairs of domains"
    change, cosine = _groups(gains), _groups(cosines)
    kinds = {"own": "their own centroid", "alike": "that of another one", "other": "that of another family"}
    parts = [
        f"{change[kind]:+.1f} points with {words}" + ("" if kind == "own" else f" (cosine {cosine[kind]:.2f})")
        for kind, words in kinds.items()
        if kind in change
    ]
    return helped + (f"; accuracy on noises and blurs changes by {listed(parts)}" if len(parts) > 1 else "")


def _holds(gains: Matrix, cosines: Matrix) -> Holds:
    change, cosine = _groups(gains), _groups(cosines)
    if not {"alike", "other"} <= change.keys():
        return "unclear"
    stand_out = [groups["alike"] > groups["other"] for groups in (change, cosine)]
    return counted([*stand_out, change["alike"] > 0])

"""The centroid of one domain on the images of another."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from typing import Any

import torch

from neotta.evaluate.comparison import METRICS
from neotta.evaluate.latent_shift import centroid_cosines
from neotta.evaluate.metrics import Interval
from neotta.evaluate.records import Record
from neotta.evaluate.verdicts import Value, gap_of
from neotta.evaluate.workbench import Workbench
from neotta.paper.finding import Holds, counted, gained, together
from neotta.paper.item import Case, Skip, item
from neotta.paper.latent import same_images
from neotta.paper.results import Results
from neotta.paper.tables import NOTHING
from neotta.paper.words import family, listed, short_names
from neotta.report.diagrams import heat_chart

Matrix = dict[tuple[str, str], float]
"""A number for each pair of a source and a target domain."""

ALIKE = ("noise", "blur")
"""The families of which the paper says that their members share a centroid."""


@item(
    order=12,
    name="cross-domain",
    title="One domain's centroid on another",
    place="Figure 6",
    question="Does the centroid of one corruption serve another?",
    claim=(
        "It does among corruptions that are alike, such as noises or blurs: there the gain in accuracy and the cosine "
        "between centroids are high."
    ),
    runs=lambda setting: [setting.plan("none", "neo", protocol="cross-domain", seeds=setting.study.seeds[:1])],
    domains=2,
)
def show(case: Case) -> None:
    """Fill the two matrices, and compare pairs within a family with others."""
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
    case.say(_answer(gains, cosines), _holds(*_gaps(case.results()), cosines))


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
        means = [case.evidence.embeddings(bench, run)[0].double().mean(0) for run in runs]
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
    count = sum(value > 0 for value in foreign)
    helped = f"the centroid of another domain helps in {count} of {len(foreign)} pairs of domains"
    change, cosine = _groups(gains), _groups(cosines)
    kinds = {"own": "their own centroid", "alike": "that of another one", "other": "that of another family"}
    parts = [
        f"{change[kind]:+.1f} points with {words}" + ("" if kind == "own" else f" (cosine {cosine[kind]:.2f})")
        for kind, words in kinds.items()
        if kind in change
    ]
    return helped + (f"; accuracy on noises and blurs changes by {listed(parts)}" if len(parts) > 1 else "")


def _gaps(found: Results) -> tuple[Interval, Interval]:
    """What noises and blurs gain with the centroid of another one, over no adaptation and over other families'."""
    values: dict[tuple[str, str, str], Value] = {}
    for each in found.each():
        source = each.block.conditions.source_domain
        for (target, method), cell in each.block.cells.items():
            for value in cell.values.values():  # of the one seed
                values[method, source, target] = value
    over_none, over_others = [], []
    for (method, source, target), value in values.items():
        alike = source != target and family(source) == family(target) in ALIKE
        if method == "neo" and alike and ("none", source, target) in values:
            over_none.append((value, values["none", source, target]))
            others = {name: other for (by, name, on), other in values.items() if (by, on) == ("neo", target)}
            over_others += [(value, other) for name, other in others.items() if family(name) != family(target)]
    top1 = METRICS["top1"]
    by_none, by_others = (gap_of([pairs], top1).interval if pairs else NOTHING for pairs in (over_none, over_others))
    return by_none, by_others


def _holds(over_none: Interval, over_others: Interval, cosines: Matrix) -> Holds:
    """Whether like corruptions share a centroid, by what they gain with it and by the cosine between centroids."""
    cosine = _groups(cosines)
    if not {"alike", "other"} <= cosine.keys():
        return "unclear"
    alike = counted([cosine["alike"] > cosine["other"]])
    return together([gained(over_others), alike, gained(over_none)])

"""The centroid of one domain on the images of another."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from typing import Any

import torch
from torch.nn import functional as F

from neotta.evaluate.bench import Bench
from neotta.evaluate.estimates import METRICS, difference_of
from neotta.evaluate.metrics import NOTHING, Interval
from neotta.paper.claims import Holds, counted, family, gained, listed, short_names, together
from neotta.paper.item import Report, item, need
from neotta.paper.latent import embeddings, same_images
from neotta.paper.measured import Measured
from neotta.report.charts import heat_chart

Matrix = dict[tuple[str, str], float]
Values = dict[tuple[str, str], Any]
"""A number, or a row of the frame, for each pair of a source and a target domain."""

ALIKE = ("noise", "blur")
"""The families of which the paper says that their members share a centroid."""


@item(
    title="One domain's centroid on another",
    place="Figure 6",
    claim=(
        "It does among corruptions that are alike, such as noises or blurs: there the gain in accuracy and the cosine "
        "between centroids are high."
    ),
    runs=lambda setting: [setting.plan("none", "neo", order="cross-domain", seeds=setting.study.seeds[:1])],
    domains=2,
)
def cross_domain(report: Report) -> None:
    """Does the centroid of one corruption serve another?"""
    values = _values(report.results())
    gains = need(_changes(*values))
    cosines, samples = _cosines(report), report.setting.samples
    _draw(
        report,
        gains,
        ("accuracy", "change in accuracy with the centroid of another domain", "change in accuracy (points)"),
        f"Points over no adaptation on the target's images, with the centroid of {samples} images of the source. "
        f"Seed {report.setting.study.seeds[0]}.",
        digits=1,
        centre=0.0,
    )
    _draw(
        report,
        cosines,
        ("cosine", "cosine between the centroids of two domains", "cosine"),
        f"Centroids of the same {samples} images in each domain.",
        digits=2,
    )
    report.say(_answer(gains, cosines), _holds(*_gaps(*values), cosines))


def _values(results: Measured) -> tuple[Values, Values]:
    values: dict[str, Values] = {"neo": {}, "none": {}}
    for each in results.each():
        for (target, method), cell in each.cells.items():
            for value in cell.values():  # of the one seed
                values[method][each.conditions.source_domain, target] = value
    return values["neo"], values["none"]


def _changes(neo: Values, none: Values) -> Matrix:
    return {place: neo[place].top1 - none[place].top1 for place in neo if place in none}


def _cosines(report: Report) -> Matrix:
    domains = report.setting.domains
    runs = [same_images(report.setting, domain, report.setting.samples) for domain in domains]

    def compute(bench: Bench) -> Any:
        means = [embeddings(bench, run)[0].double().mean(0) for run in runs]
        unit = F.normalize(torch.stack(means), dim=1)
        return (unit @ unit.T).tolist()

    rows = report.evidence.analysis("centroid-cosines", report.setting, runs, compute)
    pairs = [(source, target) for source in domains for target in domains]
    return dict(zip(pairs, (value for row in rows for value in row), strict=True))


def _draw(report: Report, matrix: Matrix, words: tuple[str, str, str], caption: str, **how: Any) -> None:
    (name, heading, label), domains = words, report.setting.domains
    values = [[matrix.get((source, target), math.nan) for target in domains] for source in domains]
    x, y = "target: where the images are from", "source: where the centroid is from"
    report.figure(
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
    groups: dict[str, list[float]] = {"own": [], "alike": [], "other": []}
    for (source, target), value in matrix.items():
        if family(target) in ALIKE:
            kind = "own" if source == target else "alike" if family(source) == family(target) else "other"
            groups[kind].append(value)
    return {kind: statistics.fmean(values) for kind, values in groups.items() if values}


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


def _gaps(neo: Values, none: Values) -> tuple[Interval, Interval]:
    over_none, over_others = (defaultdict[str, list[tuple[Any, Any]]](list) for _ in range(2))  # by source
    for (source, target), value in neo.items():
        if source != target and family(source) == family(target) in ALIKE and (source, target) in none:
            over_none[source].append((value, none[source, target]))
            others = [other for (name, on), other in neo.items() if on == target and family(name) != family(target)]
            over_others[source] += [(value, other) for other in others]
    top1 = METRICS["top1"]
    by_none, by_others = (
        difference_of(list(pairs.values()), top1).interval if pairs else NOTHING for pairs in (over_none, over_others)
    )
    return by_none, by_others


def _holds(over_none: Interval, over_others: Interval, cosines: Matrix) -> Holds:
    cosine = _groups(cosines)
    if not {"alike", "other"} <= cosine.keys():
        return "unclear"
    alike = counted([cosine["alike"] > cosine["other"]])
    return together([gained(over_others), alike, gained(over_none)])

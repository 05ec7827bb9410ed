"""The centroid of one domain on the images of another."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from neotta.errors import NeottaError
from neotta.evaluate.latent_shift import centroid_cosines
from neotta.evaluate.plan import Plan
from neotta.evaluate.records import Record
from neotta.evaluate.workbench import Workbench
from neotta.paper import comparing
from neotta.paper.evidence import Evidence
from neotta.paper.families import family, short_names
from neotta.paper.item import Finding, Holds, Item
from neotta.paper.latent import same_images
from neotta.paper.study import Setting
from neotta.report.figures import Figure, heat

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

Matrix = dict[tuple[str, str], float]
"""A number for each pair of a source and a target domain."""

ALIKE = ("noise", "blur")
"""The families of which the paper says that their members share a centroid."""


class CrossDomain(Item):
    """Figure 6."""

    name = "figure-cross-domain"
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

    def find(self, evidence: Evidence) -> Finding:
        """Fill the two matrices, and compare pairs within a family with others."""
        finding = Finding()
        for setting in evidence.settings:
            plans = self.plans(setting)
            if not plans:
                finding.notes.append(f"{setting.title}: has one domain, and this needs several.")
            gains = changes(evidence.records(*plans))
            if not gains:
                continue
            try:
                cosines = _cosines(evidence, setting)
            except NeottaError as error:
                finding.notes.append(f"{setting.title}: {error}")
                continue
            finding.parts += _figures(setting, gains, cosines)
            finding.say(_answer(setting, gains, cosines), _holds(gains, cosines))
        return finding


def changes(records: Iterable[Record]) -> Matrix:
    """NEO's accuracy minus that without adaptation, on the same images, by source and target."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for record in records:
        if record.get("status") == "ok" and record["metrics"].get("top1") is not None:
            place = (record["source_domain"], record["domain"])
            found.setdefault(place, {})[record["method"]] = record["metrics"]["top1"]
    return {place: each["neo"] - each["none"] for place, each in found.items() if {"neo", "none"} <= each.keys()}


def _cosines(evidence: Evidence, setting: Setting) -> Matrix:
    """Cosines between the centroids that the runs subtract."""
    runs = [same_images(setting, domain, setting.samples) for domain in setting.domains]

    def compute(bench: Workbench) -> Any:
        means = []
        for run in runs:
            dataset, index = bench.data.dataset(run.domains[0]), bench.phases(run)[0].stream.index
            means.append(bench.embeddings.get(dataset, index)[0].double().mean(0))
        return centroid_cosines(torch.stack(means)).tolist()

    values = evidence.analysis("centroid-cosines", setting, runs, compute)
    return {
        (source, target): values[row][column]
        for row, source in enumerate(setting.domains)
        for column, target in enumerate(setting.domains)
    }


def _figures(setting: Setting, gains: Matrix, cosines: Matrix) -> list[Figure]:
    first, size = setting.study.seeds[0], (7.0, max(3.4, 1.6 + 0.27 * len(setting.domains)))
    change = Figure(
        comparing.file_name("cross domain accuracy", setting.title),
        f"{setting.title}: change in accuracy with the centroid of another domain",
        _drawing(setting.domains, gains, 1, 0.0, "change in accuracy (points)"),
        _rows(gains, "gain"),
        f"Points over no adaptation on the target's images, with the centroid of {setting.samples} images of the "
        f"source. Seed {first}.",
        size,
    )
    cosine = Figure(
        comparing.file_name("cross domain cosine", setting.title),
        f"{setting.title}: cosine between the centroids of two domains",
        _drawing(setting.domains, cosines, 2, None, "cosine"),
        _rows(cosines, "cosine"),
        f"Centroids of the same {setting.samples} images in each domain.",
        size,
    )
    return [change, cosine]


def _drawing(
    domains: Sequence[str], matrix: Matrix, digits: int, centre: float | None, label: str
) -> Callable[[Canvas], None]:
    names = list(short_names(domains).values())
    values = [[matrix.get((source, target), math.nan) for target in domains] for source in domains]

    def draw(canvas: Canvas) -> None:
        axes = canvas.subplots()
        heat(canvas, axes, values, names, names, digits=digits, centre=centre, label=label)
        axes.set_xlabel("target: where the images are from")
        axes.set_ylabel("source: where the centroid is from")

    return draw


def _rows(matrix: Matrix, name: str) -> list[dict[str, Any]]:
    return [{"source": source, "target": target, name: value} for (source, target), value in matrix.items()]


def _groups(matrix: Matrix) -> dict[str, float]:
    """Means over sources for targets that are noises or blurs: themselves, others alike, and other families."""
    found: dict[str, list[float]] = {"own": [], "alike": [], "other": []}
    for (source, target), value in matrix.items():
        if family(target) in ALIKE:
            kind = "own" if source == target else "alike" if family(source) == family(target) else "other"
            found[kind].append(value)
    return {kind: math.fsum(values) / len(values) for kind, values in found.items() if values}


def _answer(setting: Setting, gains: Matrix, cosines: Matrix) -> str:
    foreign = [value for (source, target), value in gains.items() if source != target]
    helped = f"a foreign centroid helps in {sum(value > 0 for value in foreign)} of {len(foreign)} pairs of domains"
    change, cosine = _groups(gains), _groups(cosines)
    kinds = {"own": "their own centroid", "alike": "that of another one", "other": "that of another family"}
    parts = [
        f"{change[kind]:+.1f} points with {words}" + ("" if kind == "own" else f" (cosine {cosine[kind]:.2f})")
        for kind, words in kinds.items()
        if kind in change
    ]
    alike = f"; accuracy on noises and blurs changes by {comparing.listed(parts)}" if len(parts) > 1 else ""
    return f"On {setting.title}, {helped}{alike}."


def _holds(gains: Matrix, cosines: Matrix) -> Holds:
    change, cosine = _groups(gains), _groups(cosines)
    if not {"alike", "other"} <= change.keys():
        return "unclear"
    parts: list[Holds] = ["yes" if _stand_out(found) else "no" for found in (change, cosine)]
    return comparing.together([*parts, "yes" if change["alike"] > 0 else "no"])


def _stand_out(groups: Mapping[str, float]) -> bool:
    """Whether pairs that are alike have more than pairs of different families."""
    return groups["alike"] > groups["other"]

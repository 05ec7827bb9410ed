"""How far a model has come to neural collapse."""

from __future__ import annotations

from typing import Any

import torch

from neotta.errors import DataError
from neotta.evaluate.collapse import neural_collapse
from neotta.evaluate.domains import CLEAN
from neotta.evaluate.workbench import Workbench
from neotta.paper import published
from neotta.paper.evidence import Evidence
from neotta.paper.finding import Finding, counted
from neotta.paper.item import Case, item
from neotta.paper.latent import same_images
from neotta.paper.study import Setting
from neotta.paper.tables import Rows, single
from neotta.paper.words import listed
from neotta.report.grids import Table, grid

MEASURES = ("NC1", "NC2", "NC3", "NC4")
PUBLISHED = {
    "vit-small": (0.6070, 1.2207, 1.1969, 0.8518),
    "vit-base": (0.5110, 1.0092, 0.9501, 0.9238),
    "vit-large": (0.4640, 1.2548, 1.2069, 0.9067),
}
"""NC1 to NC4 on the validation images of ImageNet."""
FEW = 20
"""Images per class below which the estimates flatter the model noticeably."""


def _conclude(finding: Finding, shown: dict[str, list[float]]) -> None:
    every = {f"{name} (published)": list(values) for name, values in PUBLISHED.items()} | shown
    data: Rows = [
        {"model": name, **dict(zip(MEASURES, values, strict=True)), "published": name not in shown}
        for name, values in every.items()
    ]
    rows = {name: [f"{value:.4f}" for value in values] for name, values in every.items()}
    caption = (
        "NC1: variance within classes over the distance between their means. NC2: distance of the class means "
        "from a simplex. NC3: distance of the head from the class means. NC4: how often the head chooses the "
        "class with the nearest mean. Lower is better for the first three, higher for NC4."
    )
    if shown:
        finding.parts.insert(0, Table("Neural collapse on clean images", grid("model", MEASURES, rows), data, caption))


@item(
    order=17,
    name="collapse",
    title="Neural collapse",
    place="Table 5",
    question="How far has the model come to neural collapse, on which the explanation of NEO rests?",
    claim=(
        "ViTs trained on ImageNet show it to a degree: NC1 of 0.46 to 0.61, NC2 of 1.01 to 1.25, NC3 of 0.95 to 1.21, "
        "and the head chooses the class with the nearest mean for 85 to 92 % of the images."
    ),
    conclude=_conclude,
)
def show(case: Case) -> list[float]:
    """Measure NC1 to NC4 on the clean embeddings."""
    found = _measure(case.evidence, case.setting)
    values: list[float] = found["values"]
    subject = case.setting.subject
    same = published.imagenet_model(subject.model, subject.model_options)
    model = same if same in PUBLISHED else published.REFERENCE
    case.beside(
        "neural collapse",
        dict(zip(MEASURES, PUBLISHED[model], strict=True)),
        {name: single(value) for name, value in zip(MEASURES, values, strict=True)},
        corner="measure",
        digits=4,
        caption=f"Published: {model} on ImageNet.",
    )
    numbers = ", ".join(f"{name} {value:.2f}" for name, value in zip(MEASURES, values, strict=True))
    better = [name for name, good in zip(MEASURES, collapsed(values), strict=True) if good]
    some = f"{listed(better)} {'is' if len(better) == 1 else 'are'}"
    what = {4: "all four are", 0: "none of them is"}.get(len(better), some)
    answer = f"{numbers}: {what} at least as good as in the least collapsed ViT of the paper"
    case.say(answer, counted(collapsed(values)))
    case.note(*_about(case.setting, found))
    return values


def _measure(evidence: Evidence, setting: Setting) -> dict[str, Any]:
    if not setting.clean:
        raise DataError("neural collapse is measured on clean images, and there are none: use clean data")
    run = same_images(setting, CLEAN)

    def compute(bench: Workbench) -> dict[str, Any]:
        embeddings, labels = evidence.embeddings(bench, run)
        classes = len(torch.unique(labels))
        if len(labels) < 2 * classes:
            raise DataError(
                f"several images of each class are needed, got {len(labels)} images of {classes} classes: raise "
                "'evaluate', or use more images"
            )
        rows = slice(None) if bench.data.kept is None else bench.data.kept
        weight = bench.head.weight.detach().cpu()[rows]
        bias = None if bench.head.bias is None else bench.head.bias.detach().cpu()[rows]
        values = list(neural_collapse(embeddings, labels, weight, bias))
        return {"values": values, "images": len(labels), "classes": classes}

    found: dict[str, Any] = evidence.analysis("neural-collapse", setting, [run], compute)
    return found


def collapsed(values: list[float]) -> list[bool]:
    """For each measure whether it is at least as good as that of the worst model of the paper."""
    columns = list(zip(*PUBLISHED.values(), strict=True))
    lower = [value <= max(column) for value, column in zip(values[:3], columns[:3], strict=True)]
    return [*lower, values[3] >= min(columns[3])]


def _about(setting: Setting, found: dict[str, Any]) -> list[str]:
    per_class = found["images"] / found["classes"]
    notes = [f"{setting.title}: {found['images']} images, {per_class:.1f} per class (the paper: 50)."]
    if per_class < FEW:
        notes.append(
            f"{setting.title}: the mean of so few images lies close to each of them, so NC1 comes out too low and NC4 "
            "too high."
        )
    return notes

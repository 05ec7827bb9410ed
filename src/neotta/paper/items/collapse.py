"""How far a model has come to neural collapse, the geometry that explains why re-centering works, and what follows.

Definitions follow Wu & Papyan 2024 ("Linguistic Collapse") and, where they differ, the NEO paper's appendix. All need
labels and the unadapted embeddings.
"""

from __future__ import annotations

from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from neotta.errors import DataError, InputError
from neotta.evaluate.bench import Bench
from neotta.evaluate.domains import CLEAN
from neotta.paper import published
from neotta.paper.claims import counted, listed
from neotta.paper.evidence import Evidence
from neotta.paper.item import Report, item
from neotta.paper.latent import CLEAN_NEEDED, embeddings, pair, same_images
from neotta.paper.study import Setting
from neotta.paper.tables import Rows, single
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


def _conclude(report: Report, shown: dict[str, list[float]]) -> None:
    every = {f"{name} (published)": list(values) for name, values in PUBLISHED.items()} | shown
    data: Rows = [
        {"model": name, **dict(zip(MEASURES, values, strict=True)), "published": name not in shown}
        for name, values in every.items()
    ]
    rows = {name: [f"{value:.4f}" for value in values] for name, values in every.items()}
    caption = (
        "NC1: variance within classes over the distance between their means. NC2: distance of the class means "
        "from a simplex. NC3: the same distance for the products of head and class means. NC4: how often the head "
        "chooses the class with the nearest mean. Lower is better for the first three, higher for NC4. For NC3 the "
        "paper's appendix prints another formula, the distance between the normalised head and the normalised class "
        "means; the values of its table are of this one."
    )
    if shown:
        report.parts.insert(0, Table("Neural collapse on clean images", grid("model", MEASURES, rows), data, caption))


@item(
    title="Neural collapse",
    place="Table 5",
    claim=(
        "ViTs trained on ImageNet show it to a degree: NC1 of 0.46 to 0.61, NC2 of 1.01 to 1.25, NC3 of 0.95 to 1.21, "
        "and the head chooses the class with the nearest mean for 85 to 92 % of the images."
    ),
    conclude=_conclude,
)
def collapse(report: Report) -> list[float]:
    """How far has the model come to neural collapse, on which the explanation of NEO rests?"""
    measures = _measure(report.evidence, report.setting)
    values: list[float] = measures["values"]
    same = published.imagenet_model(report.setting.subject)
    model = same if same in PUBLISHED else published.REFERENCE
    report.beside(
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
    report.say(answer, counted(collapsed(values)))
    per_class = measures["images"] / measures["classes"]
    report.note(f"{report.title}: {measures['images']} images, {per_class:.1f} per class (the paper: 50).")
    if per_class < FEW:
        report.note(
            f"{report.title}: the mean of so few images lies close to each of them, so NC1 comes out too low and NC4 "
            "too high."
        )
    return values


def _measure(evidence: Evidence, setting: Setting) -> dict[str, Any]:
    if not setting.clean:
        raise DataError("neural collapse is measured on clean images, and there are none: use clean data")
    run = same_images(setting, CLEAN, setting.images)

    def compute(bench: Bench) -> dict[str, Any]:
        rows, labels, _ = embeddings(bench, run)
        classes = len(torch.unique(labels))
        if len(labels) < 2 * classes:
            raise DataError(
                f"several images of each class are needed, got {len(labels)} images of {classes} classes: "
                "use more images"
            )
        values = list(neural_collapse(rows, labels, *_head_of(bench)))
        return {"values": values, "images": len(labels), "classes": classes}

    measures: dict[str, Any] = evidence.analysis("neural-collapse", setting, [run], compute)
    return measures


def _head_of(bench: Bench) -> tuple[Tensor, Tensor | None]:
    rows = slice(None) if bench.data.class_indices is None else bench.data.class_indices
    bias = bench.head.bias
    return bench.head.weight.detach().cpu()[rows], None if bias is None else bias.detach().cpu()[rows]


def collapsed(values: list[float]) -> list[bool]:
    """For each measure whether it is at least as good as that of the worst model of the paper."""
    columns = list(zip(*PUBLISHED.values(), strict=True))
    lower = [value <= max(column) for value, column in zip(values[:3], columns[:3], strict=True)]
    return [*lower, values[3] >= min(columns[3])]


# ---- the measures


class ClassStatistics(NamedTuple):
    """What the measures are made of, in float64, over the classes that have samples."""

    present: Tensor  # (K,) the classes
    means: Tensor  # (K, d)
    centred: Tensor  # (K, d) means minus their unweighted mean
    variance: Tensor  # (K,) mean squared distance to the class mean


def neural_collapse(embeddings: Tensor, labels: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[float, ...]:
    """NC1 to NC4 of `embeddings` (N, d) with `labels` (N,), and of the `weight` (C, d) and `bias` (C,) of the head."""
    statistics = class_statistics(embeddings, labels)
    head = weight.double()[statistics.present]
    shifts = None if bias is None else bias.double()[statistics.present]
    nearest = agreement(embeddings, statistics, head, shifts)
    return cdnv(statistics), simplex_error(statistics), duality_error(statistics, head), nearest


def class_statistics(embeddings: Tensor, labels: Tensor) -> ClassStatistics:
    if embeddings.dim() != 2 or labels.shape != embeddings.shape[:1]:
        raise InputError(f"embeddings (N, d) and labels (N,) were expected, got {embeddings.shape}, {labels.shape}")
    embeddings = embeddings.detach().double()
    present, where, count = torch.unique(labels, return_inverse=True, return_counts=True)
    if len(present) < 2:
        raise InputError(f"neural collapse compares classes: at least two are needed, got {len(present)}")
    means = torch.zeros(len(present), embeddings.shape[1], dtype=torch.float64)
    means = means.index_add_(0, where, embeddings) / count.unsqueeze(1)
    residuals = embeddings - means[where]
    variance = torch.zeros(len(present), dtype=torch.float64).index_add_(0, where, residuals.square().sum(1)) / count
    return ClassStatistics(present, means, means - means.mean(0), variance)


def cdnv(statistics: ClassStatistics) -> float:
    """NC1: mean over pairs of classes of their mean variance over the squared distance of their means."""
    first, second = torch.triu_indices(len(statistics.means), len(statistics.means), offset=1)
    variance = (statistics.variance[first] + statistics.variance[second]) / 2
    distance = (statistics.means[first] - statistics.means[second]).square().sum(1)
    return float((variance / distance).mean())


def simplex_error(statistics: ClassStatistics) -> float:
    """NC2: Frobenius distance of the normalised Gram matrix of class means from that of a simplex."""
    return _frame_error(statistics.centred @ statistics.centred.T)


def duality_error(statistics: ClassStatistics, weight: Tensor) -> float:
    """NC3: the same distance for the products of head and class means; `weight` is (K, d).

    It is 0 if the class means form a simplex and the head is proportional to them (self-duality), but also for other
    heads with such products. The paper's appendix prints another measure, the distance between the normalised head and
    the normalised means; the values of its table are of this one.
    """
    return _frame_error(weight.double() @ statistics.centred.T)


def agreement(embeddings: Tensor, statistics: ClassStatistics, weight: Tensor, bias: Tensor | None) -> float:
    """NC4: how often the head's choice is the class with the nearest mean."""
    embeddings = embeddings.detach().double()
    logits = embeddings @ weight.double().T
    if bias is not None:
        logits = logits + bias.double()
    nearest = torch.cdist(embeddings, statistics.means).argmin(dim=1)
    return float((logits.argmax(dim=1) == nearest).double().mean())


def _frame_error(gram: Tensor) -> float:
    classes = len(gram)
    simplex = (torch.eye(classes, dtype=torch.float64) - 1.0 / classes) / (classes - 1) ** 0.5
    return float((gram / gram.norm() - simplex).norm())


# ---- the propositions

SMALL, LARGE = 0.1, 0.9
"""What is below the one counts as vanishing, what is above the other as the same."""
CONDITIONS = {
    "mean": ("|mean of clean embeddings| / |embedding|", 0),
    "mean_logits": ("|logits of that mean| / |logits|", 0),
    "bias": ("|bias| / |logits|", 0),
    "without_bias": ("same class without the bias", 1),
    "by_cosine": ("same class by the cosine alone", 1),
    "shift": ("cosine of the shift and the mean of shifted embeddings", 1),
    "same_class": ("same class without that mean as without the shift", 1),
}
"""What is measured, and its value where the propositions hold; the last two need shifted images."""


@item(
    title="What the propositions rest on",
    place="Propositions 1 and 2",
    claim=(
        "After neural collapse both vanish: the shift is then the mean of the shifted embeddings, and the cosine to "
        "the weights decides the class."
    ),
    remarks=(
        f"A size of at most {SMALL} counts as vanishing, a cosine or an agreement of at least {LARGE} as the same. "
        "Logits are taken without their mean over the classes, which changes no class.",
    ),
)
def propositions(report: Report) -> None:
    """Are the mean of clean embeddings and the bias of the head small enough for the propositions to apply?"""
    if not report.setting.clean:
        raise DataError(CLEAN_NEEDED)
    runs = {domain: same_images(report.setting, domain) for domain in (CLEAN, *report.setting.domains)}

    def compute(bench: Bench) -> Any:
        pairs = {domain: pair(bench, runs[CLEAN], run)[:2] for domain, run in runs.items()}
        weight, bias = _head_of(bench)
        measured = on_clean(pairs[CLEAN][0], weight, bias)
        shifted = {d: on_shifted(*both, weight, bias) for d, both in pairs.items() if d != CLEAN}
        return {"clean": measured, "shifted": shifted, "images": len(pairs[CLEAN][0])}

    found = report.evidence.analysis("propositions", report.setting, list(runs.values()), compute)
    shifted: dict[str, dict[str, float]] = found["shifted"]
    values = dict(found["clean"])
    for name in ("shift", "same_class") if shifted else ():
        values[name] = fmean(each[name] for each in shifted.values())
    report.table(
        "sizes and agreements",
        grid("measure", ("under the propositions", "measured"), {
            CONDITIONS[name][0]: [f"{CONDITIONS[name][1]}", f"{value:.2f}"] for name, value in values.items()
        }),
        [{"measure": name, "expected": CONDITIONS[name][1], "measured": value} for name, value in values.items()],
        f"From {found['images']} clean images and, for the last two, the same images in {len(shifted)} domains.",
    )  # fmt: skip
    report.table(
        "the mean of shifted embeddings as the shift",
        grid(
            "domain", ("cosine", "same class"), {d: [f"{v:.2f}" for v in each.values()] for d, each in shifted.items()}
        ),
        [{"domain": domain, **each} for domain, each in shifted.items()],
        "Cosine between the shift of the mean and the mean of the shifted embeddings, and how often an image gets the "
        "same class without either.",
    )
    facts = {name: value <= SMALL if not CONDITIONS[name][1] else value >= LARGE for name, value in values.items()}
    answer = (
        f"the mean of clean embeddings has {values['mean']:.0%} of the size of an embedding, and the bias "
        f"{values['bias']:.0%} of that of the logits; the class is the same for {values['without_bias']:.0%} of clean "
        f"images without the bias, and for {values['by_cosine']:.0%} by the cosine alone"
    )
    if shifted:
        answer += f"; the cosine between the shift and the mean of shifted embeddings is {values['shift']:.2f}"
    answer += f": {sum(facts.values())} of {len(facts)} measures are as the propositions need them"
    report.say(answer.replace("%", " %"), counted(facts.values()))


def on_clean(embeddings: Tensor, weight: Tensor, bias: Tensor | None) -> dict[str, float]:
    """Sizes of mean and bias, and how often the class is the same without the bias and by the cosine alone.

    `embeddings` of clean images are (N, d), the head's `weight` (C, d) and `bias` (C,).
    """
    embeddings, weight = embeddings.double(), weight.double()
    bias = torch.zeros(len(weight), dtype=torch.float64) if bias is None else bias.double()
    mean, products = embeddings.mean(0), embeddings @ weight.T
    size = _centred(products).norm(dim=1).mean()
    classes = (products + bias).argmax(1)
    cosines = products / weight.norm(dim=1)
    return {
        "mean": float(mean.norm() / embeddings.norm(dim=1).mean()),
        "mean_logits": float(_centred(weight @ mean).norm() / size),
        "bias": float(_centred(bias).norm() / size),
        "without_bias": float((products.argmax(1) == classes).double().mean()),
        "by_cosine": float((cosines.argmax(1) == classes).double().mean()),
    }


def on_shifted(clean: Tensor, shifted: Tensor, weight: Tensor, bias: Tensor | None) -> dict[str, float]:
    """What the mean of shifted embeddings is to the shift: their cosine, and how often both leave the same class.

    `clean` and `shifted` embeddings of the same images are (N, d), the head's `weight` (C, d) and `bias` (C,).
    """
    clean, shifted, weight = clean.double(), shifted.double(), weight.double()
    mean = shifted.mean(0)
    shift = mean - clean.mean(0)
    one, other = (
        F.linear(shifted - offset, weight, None if bias is None else bias.double()) for offset in (mean, shift)
    )
    agree = (one.argmax(1) == other.argmax(1)).double().mean()
    return {"shift": float(F.cosine_similarity(mean, shift, dim=0)), "same_class": float(agree)}


def _centred(logits: Tensor) -> Tensor:
    return logits - logits.mean(-1, keepdim=True)

"""What NEO learns from the images of a single class, where a dataset has few of each."""

from __future__ import annotations

import functools
from statistics import fmean
from typing import Any

import numpy as np
import torch
from PIL import Image as Pictures
from torch import Tensor

from neotta.data.base import Image
from neotta.evaluate.bench import Bench
from neotta.evaluate.metrics import Interval, interval
from neotta.evaluate.plan import Run
from neotta.paper.claims import doubted, gained
from neotta.paper.item import Report, Skip, item
from neotta.paper.latent import same_images
from neotta.paper.tables import Rows, plain
from neotta.report.grids import grid

CLASSES, SAMPLES, LEAST = 20, 50, 3.0
"""Classes that are tried, one at a time; the paper's samples of a class; and the points that it gains at least."""
WAYS = {
    "images": "all images of one class",
    "views": f"{SAMPLES} augmented views of them",
    "mixed": f"{SAMPLES} images of as many classes",
}


@item(
    title="One class of many",
    place="Abstract and Figure 5b",
    claim=f"Adapting on {SAMPLES} samples of one class of ImageNet gains more than {LEAST:g} points on the 999 others.",
    remarks=(
        "The paper adapts on 50 images of a class. Where there are fewer, augmented views (parts of at least half of "
        "the image, mirrored or not) stand for them: they are not as different as other images are.",
    ),
)
def one_class(report: Report) -> None:
    """Is one class enough to gain on all others?"""
    setting = report.setting
    if not 0 < setting.fewest < SAMPLES:
        raise Skip("has enough images of each class: see the item classes." if setting.fewest else "has no labels.")
    found = {}
    for domain in setting.domains:
        run = same_images(setting, domain, -1)
        found[domain] = report.evidence.analysis("one-class", setting, [run], functools.partial(_measure, run))
    means = {way: _mean([found[domain][way] for domain in found]) for way in WAYS}
    rows = {domain: [f"{fmean(by_way[way]):+.1f}" for way in WAYS] for domain, by_way in found.items()}
    rows["all domains"] = [means[way].text(1, "+") for way in WAYS]
    data: Rows = [
        {"domain": domain, "adapted_on": way, "gain": fmean(by_way[way]), "classes": len(by_way[way])}
        for domain, by_way in found.items()
        for way in WAYS
    ]
    data += [{"domain": "all", "adapted_on": way, **plain(mean)} for way, mean in means.items()]
    caption = (
        f"Points over the plain model on all images of the other classes, mean over {CLASSES} classes (of "
        f"{setting.classes:,}, {setting.fewest} images each at least). Interval: over the classes that are adapted on."
    )
    report.table("gain on the other classes", grid("domain", list(WAYS.values()), rows), data, caption)
    said = [f"{doubted(means[way])} after {words}" for way, words in WAYS.items()]
    report.say(f"the gain on other classes is {'; '.join(said)}", gained(means["views"], LEAST))


def _mean(by_domain: list[list[float]]) -> Interval:
    return interval([fmean(values) for values in zip(*by_domain, strict=True)], shared=0.0)


def _measure(run: Run, bench: Bench) -> dict[str, Any]:
    """Gains on the images of all other classes by what is adapted on, for each class that is tried."""
    dataset = bench.data.dataset(run.domain)
    order = bench.orders(run)[0]
    rows, readable = bench.embeddings.get(dataset, order.index)
    rows, index = rows.to(bench.head.weight), order.index[readable]
    labels = torch.from_numpy(np.asarray(dataset.labels)[index])
    rng = np.random.default_rng(run.seed)
    chosen = rng.choice(np.unique(labels), CLASSES, replace=False).tolist()
    right = bench.head(rows).argmax(1) == labels
    gains: dict[str, list[float]] = {way: [] for way in WAYS}
    for label in chosen:
        mine, others = labels == label, torch.from_numpy(rng.permutation(len(rows)))
        others = others[labels[others] != label]
        views = [
            view for place in index[mine.numpy()] for view in _views(dataset.read(int(place)), int(mine.sum()), rng)
        ]
        seen = bench.encoder(torch.stack([bench.data.preprocess(view) for view in views]).to(rows)).detach()
        rest = others[SAMPLES:]  # also where those before are not adapted on: all ways are scored alike
        for way, some in {"images": rows[mine], "views": seen, "mixed": rows[others[:SAMPLES]]}.items():
            gains[way].append(_gain(bench, some, rows[rest], labels[rest], right[rest]))
    return {way: [round(value, 4) for value in values] for way, values in gains.items()}


def _gain(bench: Bench, adapted: Tensor, rows: Tensor, labels: Tensor, right: Tensor) -> float:
    again = bench.head(rows - adapted.mean(0)).argmax(1) == labels
    return 100 * float(again.double().mean() - right.double().mean())


def _views(image: Image, images: int, rng: np.random.Generator) -> list[Image]:
    """Augmented views of an image, as many as make `SAMPLES` with those of the others."""
    height, width = image.shape[:2]
    views = []
    for _ in range(SAMPLES // images):
        share = np.sqrt(rng.uniform(0.5, 1.0))
        tall, wide = int(height * share), int(width * share)
        top, left = rng.integers(height - tall + 1), rng.integers(width - wide + 1)
        part = Pictures.fromarray(image[top : top + tall, left : left + wide])
        view = np.asarray(part.resize((width, height), Pictures.Resampling.BILINEAR))
        views.append(view[:, ::-1].copy() if rng.random() < 0.5 else view)
    return views

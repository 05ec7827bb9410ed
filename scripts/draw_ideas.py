"""Draws the figures of the pages under "Understand" and of the home page into `docs/images`.

python scripts/draw_ideas.py            # a few seconds
python scripts/draw_ideas.py --into X   # into another folder
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from neotta.evaluate.statistics import difference

DOCS = Path(__file__).resolve().parent.parent / "docs"
BLUE, ORANGE, PURPLE, INK = "#0b7fab", "#c2410c", "#8a63c9", "#767c86"
COLOURS = np.array([BLUE, ORANGE, PURPLE])
CLASSES, PEAK = 10, 6.0


def recentering() -> Figure:
    """Embeddings of three classes: clean, shifted, re-centered."""
    rng = np.random.default_rng(0)
    angles = np.pi / 2 + 2 * np.pi * np.arange(3) / 3
    means = 2.2 * np.stack([np.cos(angles), np.sin(angles)], 1)
    labels = rng.integers(0, 3, 240)
    clean = means[labels] + rng.normal(0, 0.55, (240, 2))
    shifted = clean + np.array([2.6, 1.4])
    figure, axes = plt.subplots(1, 3, figsize=(10, 3.4), layout="constrained")
    for axis, points, title in zip(
        axes, (clean, shifted, shifted - shifted.mean(0)), ("clean", "shifted", "re-centered"), strict=True
    ):
        _embeddings(axis, points, labels, means, title)
    return figure


def _embeddings(
    axis: Axes, points: NDArray[np.float64], labels: NDArray[np.int64], means: NDArray[np.float64], title: str
) -> None:
    x, y = np.meshgrid(*[np.linspace(-5, 6, 300)] * 2)
    regions = np.argmax(np.stack([x, y], -1) @ means.T, -1)
    axis.contourf(x, y, regions, levels=[-0.5, 0.5, 1.5, 2.5], colors=COLOURS, alpha=0.14)
    right = np.argmax(points @ means.T, 1) == labels
    axis.scatter(*points.T, c=COLOURS[labels], s=9)
    axis.plot(*points.mean(0), "+", color=INK, ms=16, mew=3)
    axis.set(title=f"{title}: {right.mean():.0%} right", xticks=[], yticks=[], aspect="equal")
    axis.spines[:].set_visible(False)


def logits(rng: np.random.Generator, labels: NDArray[np.int64], noise: float = 0.7) -> NDArray[np.float64]:
    """Logits of an ideal classifier: one peak per class, centred over classes."""
    rows = PEAK * (np.eye(CLASSES)[labels] - 1 / CLASSES) + rng.normal(0, noise, (len(labels), CLASSES))
    return np.asarray(rows - rows.mean(1, keepdims=True))


def means() -> Figure:
    """The mean logits of streams without any shift."""
    rng = np.random.default_rng(1)
    figure, axes = plt.subplots(1, 4, figsize=(10, 2.6), sharey=True, layout="constrained")
    kinds = ((1, "one class"), (2, "two classes"), (3, "three classes"), (CLASSES, "ten classes"))
    for axis, (count, name) in zip(axes, kinds, strict=True):
        axis.bar(range(CLASSES), logits(rng, rng.integers(0, count, 600)).mean(0), color=BLUE)
        axis.set(title=name, xlabel="class", xticks=[0, CLASSES - 1])
    axes[0].set_ylabel("mean logit, no shift")
    return figure


def skewness() -> Figure:
    """The third moment of the logits by the number of classes in the stream."""
    rng = np.random.default_rng(1)
    counts = range(1, CLASSES + 1)
    figure, axis = plt.subplots(figsize=(6.5, 3), layout="constrained")
    for noise in (0.3, 0.7, 1.5):
        values = []
        for count in counts:
            rows = logits(rng, rng.integers(0, count, 4000), noise)
            away = rows - rows.mean(0)
            values.append(np.sqrt(CLASSES) * (away**3).mean(0).sum() / (away**2).mean(0).sum() ** 1.5)
        axis.plot(counts, values, "o-", label=f"noise {noise}")
    axis.axhline(0.6, color=INK, ls="--", lw=1)
    axis.text(CLASSES, 0.63, "gate", ha="right", va="bottom")
    axis.set(xlabel="number of classes in the stream", ylabel="skewness of the logits", xticks=list(counts))
    axis.legend()
    return figure


def verdicts() -> Figure:
    """How often two equally good methods get a verdict, by the kind of interval."""
    rng = np.random.default_rng(0)
    pool, drawn_images, seeds, trials = 600, 512, 3, 200
    wrong = np.zeros(2)
    for _ in range(trials):
        right = rng.random((2, pool)) < 0.7
        drawn = np.stack([rng.choice(pool, drawn_images, replace=False) for _ in range(seeds)])
        one, other = right[0][drawn], right[1][drawn]
        gaps = one.mean(1) - other.mean(1)
        found = difference(one, other, groups=drawn)
        wrong += [abs(gaps.mean()) > 4.303 * gaps.std(ddof=1) / np.sqrt(seeds), not found.low <= 0 <= found.high]
    figure, axis = plt.subplots(figsize=(6.5, 2), layout="constrained")
    names = ["t-interval over 3 seeds", "neotta: over images and seeds"]
    bars = axis.barh(names, 100 * wrong / trials, color=[ORANGE, BLUE])
    axis.bar_label(bars, fmt="%.0f %%", padding=4, color=INK)
    axis.axvline(5, color=INK, ls="--", lw=1)
    axis.set(xlabel="false verdicts in %; asked for: 5 %")
    axis.invert_yaxis()
    return figure


FIGURES: dict[str, Callable[[], Figure]] = {
    "recentering": recentering,
    "mean-logits": means,
    "skewness": skewness,
    "verdicts": verdicts,
}


def main() -> None:
    """Draw all of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--into", type=Path, default=DOCS / "images")
    folder: Path = parser.parse_args().into
    plt.switch_backend("agg")
    with plt.style.context(DOCS / "_site" / "figures.mplstyle"):
        for name, draw in FIGURES.items():
            draw().savefig(folder / f"{name}.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()

"""Draws the picture of the README: one camera's day, with the plain model, NEO and NEO-Stream.

    python scripts/draw_day.py docs/day.svg

The camera shows the bundled digits: one digit for an hour, mixed digits, fog, one digit in the fog, a clear evening.
Each line is the share of right answers among the last 60 frames.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch

import neotta
from neotta.data.corruptions import corrupt
from neotta.data.handwritten import digits

METHODS = {"none": ("plain model", "#8c8c8c"), "neo": ("NEO", "#d55e00"), "neo-stream": ("NEO-Stream", "#0072b2")}
WINDOW, BATCH = 60, 8


def day(random: np.random.Generator, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, list[tuple[str, int]]]:
    """The frames of the day: which picture each is, whether it is foggy, and where each part begins."""
    mixed = [random.permutation(len(labels))[:count] for count in (240, 300, 240)]
    one, other = (random.permutation(np.flatnonzero(labels == digit)) for digit in (3, 8))
    parts = [
        ("clear, only 3s", np.resize(one, 240), False),
        ("clear, mixed", mixed[0], False),
        ("fog, mixed", mixed[1], True),
        ("fog, only 8s", np.resize(other, 240), True),
        ("clear, mixed", mixed[2], False),
    ]
    starts = np.cumsum([0, *(len(rows) for _, rows, _ in parts)])
    frames = np.concatenate([rows for _, rows, _ in parts])
    foggy = np.concatenate([np.full(len(rows), fog) for _, rows, fog in parts])
    return frames, foggy, [(name, int(start)) for (name, _, _), start in zip(parts, starts, strict=False)]


def right_answers(severity: int, seed: int) -> tuple[dict[str, np.ndarray], list[tuple[str, int]]]:
    """Whether each answer of each method is right, and where the parts of the day begin."""
    loaded, data = neotta.load_model("digits"), digits()
    random = np.random.default_rng(seed)
    frames, foggy, parts = day(random, data.labels)
    pictures = [
        corrupt(data.read(int(frame)), "fog", severity, "cifar", image_id=str(frame)) if fog else data.read(int(frame))
        for frame, fog in zip(frames, foggy, strict=True)
    ]
    images = torch.stack([loaded.preprocess(picture) for picture in pictures])
    with torch.inference_mode():
        embeddings = neotta.split(loaded.model)[0](images)
    truth = torch.from_numpy(data.labels[frames])
    found = {}
    for method in METHODS:
        adapter = neotta.create(method, loaded.model)
        answers = [adapter.predict_embeddings(part).argmax(1) for part in embeddings.split(BATCH)]
        found[method] = (torch.cat(answers) == truth).numpy()
    return found, parts


def draw(right: dict[str, np.ndarray], parts: list[tuple[str, int]]) -> plt.Figure:
    """One line for each method, a band for each part of the day."""
    plt.rcParams["svg.hashsalt"] = "neotta"  # the same picture gives the same file
    figure, axis = plt.subplots(figsize=(9, 3.6), layout="constrained")
    total = len(next(iter(right.values())))
    for place, (name, start) in enumerate(parts):
        end = parts[place + 1][1] if place + 1 < len(parts) else total
        axis.axvspan(start, end, color="#eef2f5" if "fog" in name else "white", lw=0)
        axis.text((start + end) / 2, 104, name.replace(", ", ",\n"), ha="center", va="bottom", fontsize=8.5)
    for method, answers in right.items():
        title, colour = METHODS[method]
        recent = np.convolve(answers, np.ones(WINDOW), "full")[:total] / np.minimum(np.arange(total) + 1, WINDOW)
        axis.plot(100 * recent, color=colour, lw=2.2, label=f"{title}: {answers.mean():.0%} over the day")
    axis.set(xlim=(0, total), ylim=(0, 102), xlabel="frame", ylabel=f"% right of the last {WINDOW}")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(loc="lower right", frameon=True, framealpha=0.9)
    return figure


def main() -> None:
    """Measure, draw and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, nargs="?", default=Path("docs/day.svg"))
    parser.add_argument("--severity", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    right, parts = right_answers(given.severity, given.seed)
    draw(right, parts).savefig(given.output, metadata={"Date": None} if given.output.suffix == ".svg" else None)
    for method, answers in right.items():
        pieces = np.split(answers, [start for _, start in parts[1:]])
        shares = ", ".join(f"{name} {piece.mean():.0%}" for (name, _), piece in zip(parts, pieces, strict=True))
        print(f"{METHODS[method][0]:12} {answers.mean():.1%}   ({shares})")


if __name__ == "__main__":
    main()

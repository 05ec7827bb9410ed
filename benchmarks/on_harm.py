"""When `on_harm` fires: NEO on clean and foggy digits in many orders, and what adapting gained or cost there.

    python benchmarks/on_harm.py

A stream is caught if `neotta.adapt(model, "neo", on_harm="warn")` warns. The share of answers that makes it warn was
chosen on streams of three other models, under some of the same corruptions.
"""

from __future__ import annotations

import argparse
import warnings

import numpy as np
import torch
from torch import nn

import neotta
from neotta.data.corruptions import CORRUPTIONS, corrupt
from neotta.data.handwritten import digits

SAMPLES, BATCH = 400, 16


def orders(labels: np.ndarray, random: np.random.Generator) -> dict[str, np.ndarray]:
    """Streams of a camera, as rows of the pictures."""
    of = [np.flatnonzero(labels == digit) for digit in range(10)]
    mixed = random.permutation(len(labels))[:SAMPLES]
    some = random.permutation(10)
    return {
        "mixed": mixed,
        "sorted": mixed[np.argsort(labels[mixed], kind="stable")],
        "bursts of 20": np.concatenate([random.choice(of[random.integers(10)], 20) for _ in range(SAMPLES // 20)]),
        "one class": random.choice(of[some[0]], SAMPLES),
        "two classes": random.choice(np.concatenate([of[some[0]], of[some[1]]]), SAMPLES),
        "five classes": random.choice(np.concatenate([of[digit] for digit in some[:5]]), SAMPLES),
        "mixed, then one class": np.concatenate([mixed[:200], random.choice(of[some[0]], SAMPLES - 200)]),
        "nine tenths one class": np.where(random.random(SAMPLES) < 0.9, random.choice(of[some[0]], SAMPLES), mixed),
    }


def score(build, rows: torch.Tensor, truth: np.ndarray) -> tuple[float, bool]:
    """Accuracy in %, and whether it warned."""
    with warnings.catch_warnings(record=True) as caught, torch.inference_mode():
        warnings.simplefilter("always")
        model = build()
        answers = torch.cat([model(part).argmax(1) for part in rows.split(BATCH)]).numpy()
    return 100 * float((answers == truth).mean()), any("adapting hurts" in str(each.message) for each in caught)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--severity", type=int, default=4)
    given = parser.parse_args()
    torch.set_num_threads(1)
    loaded, data = neotta.load_model("digits"), digits()
    encoder, head = neotta.split(loaded.model)

    def plain() -> nn.Module:
        layer = nn.Linear(head.in_features, head.out_features)
        layer.load_state_dict({"weight": head.weight.detach(), "bias": head.bias.detach()})
        return nn.Sequential(nn.Identity(), layer).eval()

    gains: dict[str, list[tuple[float, float, bool]]] = {}
    for domain in ("clean", *CORRUPTIONS):
        pictures = [data.read(row) for row in range(len(data))]
        if domain != "clean":
            pictures = [
                corrupt(picture, domain, given.severity, "cifar", image_id=str(row))
                for row, picture in enumerate(pictures)
            ]
        with torch.inference_mode():
            rows = encoder(torch.stack([loaded.preprocess(picture) for picture in pictures])).clone()
        for kind, order in orders(data.labels, np.random.default_rng(0)).items():
            stream, truth = rows[order], data.labels[order]
            base = score(plain, stream, truth)[0]
            neo, caught = score(lambda: neotta.adapt(plain(), "neo", on_harm="warn"), stream, truth)
            with_restore = score(lambda: neotta.adapt(plain(), "neo", on_harm="restore"), stream, truth)[0]
            gains.setdefault(kind, []).append((neo - base, with_restore - base, caught))
    print(f"{'stream':24}{'NEO':>8}{'worst':>8}{'restore':>10}{'worst':>8}{'caught':>10}")
    every = []
    for kind, found in gains.items():
        neo, restored, caught = (np.array(values) for values in zip(*found, strict=True))
        every += found
        print(
            f"{kind:24}{neo.mean():8.1f}{neo.min():8.1f}{restored.mean():10.1f}{restored.min():8.1f}{caught.mean():10.0%}"
        )
    neo, _, caught = (np.array(values) for values in zip(*every, strict=True))
    print(f"\nWhere it warned, NEO gained {neo[caught].mean():+.1f} points, elsewhere {neo[~caught].mean():+.1f}.")
    print(f"Of {np.sum(neo < -1)} streams hurt by more than a point it caught {np.mean(caught[neo < -1]):.0%};")
    print(f"of {np.sum(neo > 1)} that gained more than a point it stopped {np.mean(caught[neo > 1]):.0%}.")


if __name__ == "__main__":
    main()

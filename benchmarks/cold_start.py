"""Cold start: the first frames of a new camera, begun plain and begun where the fleet is.

200 cameras arrive one after the other, ten at a time, and see 20 frames each or more: two classes each, or all classes;
clean, in fog or noise, or half of the fleet in fog. Shown is the accuracy on frame 1, frames 2 to 5 and 6 to 20 of the
cameras after the first fifty. The model and images are the bundled digits, or any others:

python benchmarks/cold_start.py [--model NAME --checkpoint FILE --data PATH --preset cifar] [--seeds 2] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from torch import nn

import neotta
from neotta.evaluate.workbench import Workbench

CAMERAS, AT_A_TIME, FRAMES, EARLY = 200, 10, 20, 50
PARTS = {"1": slice(0, 1), "2-5": slice(1, 5), "6-20": slice(5, 20)}
FOG, NOISE, CLEAN = "fog/5", "gaussian_noise/3", "clean"
FLEETS = {
    "clean, 2 classes": ((CLEAN,), 2),
    "fog, 2 classes": ((FOG,), 2),
    "noise, 2 classes": ((NOISE,), 2),
    "fog, all classes": ((FOG,), None),
    "half in fog, 2 classes": ((FOG, CLEAN), 2),
}


def encoded(bench, names):
    """Embeddings of all images of each domain, and their labels."""
    found = {}
    for name in names:
        dataset = bench.data.dataset(name)
        embeddings, kept = bench.embeddings.get(dataset, np.arange(len(dataset.ids)))
        found[name] = embeddings, np.asarray(dataset.labels)[kept]
    return found


@torch.inference_mode()
def watch(head, data, domains, classes, start, seed):
    """Whether each frame of each camera is recognised, (cameras, frames)."""
    random = np.random.default_rng(seed)
    plain = nn.Linear(head.in_features, head.out_features)
    plain.weight, plain.bias = head.weight, head.bias
    model = nn.Sequential(plain)
    if start is not None:
        neotta.adapt(model, "neo-stream", streams=True, start=start)
    seen = [random.permutation(head.out_features)[:classes] for _ in range(CAMERAS)]
    right = np.zeros((CAMERAS, FRAMES))
    age = np.zeros(CAMERAS, int)
    for number in range(CAMERAS // AT_A_TIME + FRAMES - 1):
        active = [c for c in range(CAMERAS) if c // AT_A_TIME <= number and age[c] < FRAMES]
        rows, labels = [], []
        for camera in active:
            embeddings, known = data[domains[camera % len(domains)]]
            label = random.choice(seen[camera])
            rows.append(embeddings[random.choice(np.flatnonzero(known == label))])
            labels.append(label)
        with neotta.streams(active):
            answers = model(torch.stack(rows)).argmax(1).numpy()
        right[active, age[active]] = answers == np.array(labels)
        age[active] += 1
    return right[EARLY:]


def main():
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--model", default="digits")
    options.add_argument("--checkpoint")
    options.add_argument("--data", default="digits")
    options.add_argument("--preset")
    options.add_argument("--seeds", type=int, default=2)
    options.add_argument("--json", type=Path)
    given = options.parse_args()
    torch.set_num_threads(1)
    made = {} if given.checkpoint is None else {"checkpoint": given.checkpoint}
    bench = Workbench(given.model, given.data, model_options=made, corrupted=True, corruption_preset=given.preset)
    data = encoded(bench, dict.fromkeys(name for domains, _ in FLEETS.values() for name in domains))
    print(f"{'fleet':26}{'begins':10}" + "".join(f"{f'frames {part}':>13}" for part in PARTS))
    table = []
    for title, (domains, classes) in FLEETS.items():
        for name, start in (("not adapted", None), ("plain", "plain"), ("fleet", "fleet")):
            runs = [watch(bench.head, data, domains, classes, start, seed) for seed in range(given.seeds)]
            means = {part: 100 * float(np.mean([run[:, where] for run in runs])) for part, where in PARTS.items()}
            table.append({"fleet": title, "begins": name, **means})
            print(f"{title:26}{name:12}" + "".join(f"{value:12.1f} " for value in means.values()), flush=True)
    if given.json:
        given.json.write_text(json.dumps(table, indent=2))


if __name__ == "__main__":
    main()

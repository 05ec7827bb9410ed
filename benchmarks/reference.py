"""What a reference of clean images changes: heads for which the origin is the wrong place to re-center to.

Small networks are trained on the bundled digits: ten balanced classes with embeddings that are all positive, ten
classes with a long tail, two classes with 10 % positives, and three rare tags (sigmoid). The reference is measured on
their training images; test images come clean and corrupted, mixed, sorted by class, and mostly of one class, in batches
of 16.

With --data, a model of your own instead: half of its clean images are the reference, the others the streams.

python benchmarks/reference.py [--seeds 2] [--json FILE]
python benchmarks/reference.py --model NAME --checkpoint FILE --data PATH --preset cifar
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from torch import nn

from neotta.data.corruptions import corrupt
from neotta.data.handwritten import digits
from neotta.data.orders import find_order
from neotta.evaluate.bench import Bench
from neotta.evaluate.plan import Plan
from neotta.neo.head import NEOHead
from neotta.neo.reference import measured
from neotta.neo.streams import Streams
from neotta.neo.variants import rule_of

DOMAINS = (("clean", 0), ("fog", 3), ("contrast", 3), ("gaussian_noise", 3))
ORDERS: dict[str, tuple[str, dict[str, float]]] = {
    "iid": ("iid", {}),
    "sorted": ("by-class", {}),
    "half-one-class": ("dominant", {"share": 0.5}),
    "mostly-one-class": ("dominant", {"share": 0.9}),
}
RULES = {
    "neo": ("neo", False),
    "neo, ref": ("neo", True),
    "stream": ("neo-stream", False),
    "stream, ref": ("neo-stream", True),
}
BATCH = 16


def tensors(images):
    """Images, (N, H, W, 3), as (N, 3, H, W) around zero."""
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float() / 127.5 - 1


def domain(name, severity, images):
    """The test images of a domain."""
    if name == "clean":
        return tensors(images)
    kept = enumerate(images)
    return tensors([corrupt(image, name, severity, "cifar", image_id=str(place)) for place, image in kept])


def network(outputs):
    """A small network whose embeddings come out of a ReLU."""
    layers = []
    for inside, outside in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(inside, outside, 3, stride=2, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(256, outputs))


def trained(images, targets, outputs, seed, loss):
    """Train on images, (N, 3, 32, 32), with labels, (N,), or tags, (N, outputs)."""
    torch.manual_seed(seed)
    model = network(outputs)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(12):
        for rows in torch.randperm(len(images)).split(64):
            optimizer.zero_grad()
            loss(model(images[rows]), targets[rows]).backward()
            optimizer.step()
    return model.eval()


def tails(labels, random):
    """Which samples to keep so that class k is kept with probability 0.7^k."""
    return np.flatnonzero(random.random(len(labels)) < 0.7**labels)


def heads(seed):
    """Name, labels of an image, number of outputs, which training and test samples to use, and the loss."""
    random = np.random.default_rng(seed)
    softmax, sigmoid = nn.functional.cross_entropy, nn.functional.binary_cross_entropy_with_logits
    everything = lambda labels: np.arange(len(labels))  # noqa: E731
    tags = lambda labels: (labels[:, None] == np.arange(3)).astype(np.float32)  # noqa: E731
    yield "ten classes, positive embeddings", lambda labels: labels, 10, everything, softmax
    yield "ten classes, long tail", lambda labels: labels, 10, lambda labels: tails(labels, random), softmax
    yield "two classes, 10 % positives", lambda labels: (labels == 0).astype(np.int64), 2, everything, softmax
    yield "three rare tags (sigmoid)", tags, 3, everything, sigmoid


def score(logits, targets):
    """Percent right: of the classes, or of all tags."""
    right = logits.argmax(1) == targets if targets.dim() == 1 else (logits > 0) == (targets > 0)
    return 100 * float(right.double().mean())


def compared(head, known, embeddings, targets, classes, seed, name):
    """Accuracies by (order, rule) on one domain."""
    found = {}
    for kind in ORDERS:
        order, options = ORDERS[kind]
        which = torch.from_numpy(find_order(order)({name: classes}, seed=seed, **options).index)
        rows = {"plain": score(head(embeddings[which]), targets[which])}
        for rule, (method, reference) in RULES.items():
            how = rule_of(method, {})
            size = how.size(head.in_features, head.out_features)
            neo = NEOHead(head, Streams(how, size), reference=known if reference else None)
            logits = torch.cat([neo(batch) for batch in embeddings[which].split(BATCH)])
            rows[rule] = score(logits, targets[which])
        found[kind] = rows
    return found


@torch.inference_mode()
def measure_model(bench, seed):
    """Accuracies of a model on its own images by (model, domain, order, rule)."""
    found = {}
    names = ["clean", *(f"{name}/{severity}" for name, severity in DOMAINS[1:])]
    for name in names:
        dataset = bench.data.dataset(name)
        half = np.random.default_rng(seed).permutation(len(dataset.ids))
        half, rest = half[: len(half) // 2], half[len(half) // 2 :]
        if name == "clean":
            known = measured(bench.head, bench.embeddings.get(dataset, half)[0], "head")
        embeddings, kept = bench.embeddings.get(dataset, rest)
        labels = np.asarray(dataset.labels)[rest][kept]
        rows = compared(bench.head, known, embeddings, torch.from_numpy(labels), labels, seed, name)
        found.update({(bench.name.rpartition(":")[2], name, kind): row for kind, row in rows.items()})
    return found


def measure(seed):
    """Accuracies by (head, domain, order, rule)."""
    train, test, found = digits("train"), digits("test"), {}
    shifted = {name: domain(name, severity, test.images) for name, severity in DOMAINS}
    pictures = tensors(train.images)
    for title, targets_of, outputs, keep, loss in heads(seed):
        used, kept = keep(train.labels), keep(test.labels)
        targets = torch.from_numpy(targets_of(test.labels[kept]))
        model = trained(pictures[used], torch.from_numpy(targets_of(train.labels[used])), outputs, seed, loss)
        encoder, head = model[:-1], model[-1]
        with torch.inference_mode():
            known = measured(head, encoder(pictures[used]), "head")
            for name, images in shifted.items():
                embeddings = encoder(images[kept])
                classes = targets.numpy() if targets.dim() == 1 else test.labels[kept]
                rows = compared(head, known, embeddings, targets, classes, seed, name)
                found.update({(title, name, kind): row for kind, row in rows.items()})
    return found


def main():
    """Print the table: clean and shifted domains apart, the latter averaged."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--seeds", type=int, default=2)
    options.add_argument("--json", type=Path)
    options.add_argument("--model", default="digits")
    options.add_argument("--checkpoint")
    options.add_argument("--data")
    options.add_argument("--preset")
    given = options.parse_args()
    torch.set_num_threads(1)
    if given.data is None:
        runs = [measure(seed) for seed in range(given.seeds)]
    else:
        made = {} if given.checkpoint is None else {"checkpoint": given.checkpoint}
        bench = Bench(
            Plan(
                model=given.model,
                data=given.data,
                model_options=made,
                corruptions=["all"],
                corruption_preset=given.preset,
            )
        )
        runs = [measure_model(bench, seed) for seed in range(given.seeds)]
    names = ["plain", *RULES]
    print(f"{'head':34}{'data':9}{'order':18}" + "".join(f"{name:>13}" for name in names))
    table = []
    for title in dict.fromkeys(key[0] for key in runs[0]):
        for data in ("clean", "shifted"):
            for kind in ORDERS:
                cells = [
                    rows
                    for run in runs
                    for (head, name, each), rows in run.items()
                    if (head, each) == (title, kind) and (name == "clean") == (data == "clean")
                ]
                means = {name: float(np.mean([rows[name] for rows in cells])) for name in names}
                table.append({"head": title, "data": data, "order": kind, **means})
                print(f"{title:34}{data:9}{kind:18}" + "".join(f"{means[name]:13.1f}" for name in names))
    if given.json:
        given.json.write_text(json.dumps(table, indent=2))


if __name__ == "__main__":
    main()

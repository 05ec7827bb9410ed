"""How far estimates of accuracy without labels are off, on models and images of one's own.

    python benchmarks/estimators.py --model digits --data digits
    python benchmarks/estimators.py --model py:docs/results/models.py:resnet20 --checkpoint resnet20.safetensors \\
        --data cifar.npz --preset cifar

Each cell is a stream: a corruption and a severity, an order (shuffled, in bursts of 16, sorted by class) and a rule. A
camera sees it in batches of 8; the estimates of its last 256 samples are compared with the truth.
"""

import argparse
import itertools
import json

import numpy as np
import torch

from neotta._files import atomic
from neotta.data.corruptions import corrupt
from neotta.deploy.serve.classifier import Classifier, Job
from neotta.deploy.serve.clean import clean_threshold, labelled
from neotta.deploy.serve.engine import Forward
from neotta.deploy.serve.estimate import estimates
from neotta.deploy.serve.figures import WINDOW
from neotta.deploy.serve.inputs import resizing
from neotta.deploy.serve.records import Records
from neotta.deploy.serve.settings import Settings
from neotta.deploy.serve.torch_engine import TorchEngine
from neotta.deploy.serve.watch import Watch
from neotta.models.load import load_model

SHIFTS = [("clean", 0), ("fog", 3), ("fog", 5), ("gaussian_noise", 3), ("contrast", 4), ("pixelate", 4), ("snow", 4)]
ORDERS = ("shuffled", "bursts", "sorted")
RULES = ("neo-stream", "neo", "none")


def ordered(labels, order, generator):
    """The samples in an order."""
    index = generator.permutation(len(labels))
    if order == "shuffled":
        return index
    by_class = index[np.argsort(labels[index], kind="stable")]
    if order == "sorted":
        return by_class
    bursts = np.array_split(by_class, max(1, len(by_class) // 16))
    return np.concatenate([bursts[place] for place in generator.permutation(len(bursts))])


class Known:
    """What the plain model says of some images, computed once; `part` is which of them are asked for."""

    def __init__(self, engine, images):
        engine.__dict__.pop("forward", None)
        parts = [engine.forward(some) for some in np.array_split(images, max(1, len(images) // 32))]
        self.logits = np.concatenate([part.logits for part in parts])
        self.embeddings = torch.cat([part.embeddings[0] for part in parts])
        self.part = None

    def __call__(self, images):
        return Forward(self.logits[self.part], (self.embeddings[torch.from_numpy(self.part)],))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="digits")
    parser.add_argument("--checkpoint")
    parser.add_argument("--num-classes", type=int)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--preset", default="cifar")
    parser.add_argument("--samples", type=int, default=400)
    parser.add_argument("--json", help="file to write")
    given = parser.parse_args()
    options = {"checkpoint": given.checkpoint, "num_classes": given.num_classes}
    options = {name: value for name, value in options.items() if value is not None}
    engines = {rule: TorchEngine(load_model(given.model, **options), rule) for rule in RULES}
    engine = engines["none"]
    dataset, labels = labelled(engine, given.data)
    threshold = clean_threshold(engine, given.data, most=512)
    generator = np.random.default_rng(0)
    chosen = generator.permutation(len(dataset))[: given.samples]
    labels, preprocess = labels[chosen], resizing(engine.preprocess)
    cells = []
    for name, severity in SHIFTS:
        raw = [dataset.read(index) for index in chosen]
        if severity:
            raw = [corrupt(image, name, severity, given.preset, image_id=str(i)) for i, image in enumerate(raw)]
        images = np.stack([preprocess.array(image) for image in raw])
        known = Known(engine, images)  # every order and rule sees the same images: the encoder runs once
        for order, rule in itertools.product(ORDERS, RULES):
            index = ordered(labels, order, generator)
            camera = f"{name} {severity} {order}"
            watch = Watch(engines[rule], Records(), Settings(), threshold=threshold)
            engines[rule].forward = known
            classifier = Classifier(engines[rule], watch=watch)
            right = []
            for part in np.array_split(index, len(index) // 8):
                known.part = part
                (answer,) = classifier.run([Job(images[part], camera)])
                right.append(answer.adapted.argmax(1) == labels[part])
            truth = float(np.concatenate(right)[-WINDOW:].mean())
            found = estimates(watch._view(camera).figures.recent(), engine.classes, threshold)
            cells.append(
                {
                    "shift": f"{name}/{severity}",
                    "order": order,
                    "rule": rule,
                    "truth": truth,
                    **{by: each.accuracy for by, each in found.items()},
                    "inside": {by: each.low <= truth <= each.high for by, each in found.items()},
                }
            )
    report(cells)
    if given.json:
        with atomic(given.json) as path:
            path.write_text(json.dumps(cells, indent=1))


def report(cells):
    """Errors of each estimator over all cells, and its worst cells."""
    print(f"{len(cells)} cells, accuracy {min(c['truth'] for c in cells):.2f} to {max(c['truth'] for c in cells):.2f}")
    for by in ("agreement", "confidence", "threshold"):
        errors = np.array([cell[by] - cell["truth"] for cell in cells])
        inside = np.mean([cell["inside"][by] for cell in cells])
        print(
            f"{by:11} mean absolute error {abs(errors).mean():.3f}, 90 % from {np.quantile(errors, 0.05):+.3f} to "
            f"{np.quantile(errors, 0.95):+.3f}, mean {errors.mean():+.3f}, interval holds {inside:.0%}"
        )
        for order in ORDERS:
            part = [abs(cell[by] - cell["truth"]) for cell in cells if cell["order"] == order]
            print(f"    {order:9} {np.mean(part):.3f}", end="")
        for rule in RULES:
            part = [abs(cell[by] - cell["truth"]) for cell in cells if cell["rule"] == rule]
            print(f"   {rule} {np.mean(part):.3f}", end="")
        print()
        for place in np.argsort(-abs(errors))[:3]:
            cell = cells[place]
            where = f"{cell['shift']}, {cell['order']}, {cell['rule']}"
            print(f"    worst: {where}: {cell[by]:.2f} for {cell['truth']:.2f}")


if __name__ == "__main__":
    main()

"""How far estimates of accuracy without labels are off, and how often their intervals hold the truth.

    python benchmarks/estimators.py                                   # the bundled digits
    python benchmarks/estimators.py --config docs/results/study.toml --cache FOLDER

Each cell is a stream: a model, a domain (clean, and 15 corruptions at severity 5), an order (shuffled, in bursts of 16
of a class, sorted by class) and a rule. A camera sees 384 images in batches of 16; the estimates of its last 256 are
compared with the truth. With --cache, only images whose embeddings are there are used, and no encoder runs; without it,
all are encoded.

How often an interval holds is reported for each model with the widths that the other models suggest; for a single model
with those of the server.
"""

import argparse
import copy
import itertools
import json

import numpy as np

from neotta._files import atomic
from neotta.cli.config import read_config
from neotta.deploy.serve.engine import TorchEngine
from neotta.evaluate.bench import Bench
from neotta.evaluate.plan import Plan
from neotta.monitoring.accuracy import ERROR, WINDOW, Recent, interval
from neotta.paper.study import Study

ORDERS = ("shuffled", "bursts", "sorted")
RULES = ("neo-stream", "neo", "none")
WAYS = ("confidence", "product")
LENGTH, BATCH = 384, 16
SHOWN = "the server", "widths chosen on the other models"


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
    """Embeddings that take the place of the model in an engine; `part` is which of them are asked for."""

    def __init__(self, embeddings, logits):
        self.embeddings, self.logits, self.part = embeddings, logits, None

    def __call__(self, images):
        return self.logits[self.part], (self.embeddings[self.part],)


class Model:
    """A model and its data, a subject of a study."""

    def __init__(self, subject, cache):
        self.name, self.severity, self.cached = subject.title, subject.severity, cache is not None
        options = {"model_options": subject.model_options, "corruption_preset": subject.corruption_preset}
        plan = Plan(model=subject.model, data=subject.data, corruptions=["all"], **options)
        self.bench = Bench(plan, cache=cache, workers=0)
        self.generator = np.random.default_rng(0)

    def engines(self):
        """An engine for each rule."""
        return {rule: TorchEngine(copy.deepcopy(self.bench.loaded), rule) for rule in RULES}

    def encoded(self, domain):
        """Embeddings, logits and labels of a domain."""
        dataset = self.bench.data.dataset(domain)
        index = np.arange(len(dataset))
        if self.cached:
            index = np.setdiff1d(index, self.bench.embeddings.missing(dataset, index))
        index = self.generator.permutation(index)[:LENGTH]
        embeddings, kept = self.bench.embeddings.get(dataset, index)
        logits = self.bench.head(embeddings.to(self.bench.head.weight.dtype)).detach().float().numpy()
        return embeddings, logits, np.asarray(dataset.labels)[index[kept]]

    def cells(self):
        """Measure all streams."""
        engines = self.engines()
        for domain in self.bench.data.names(["clean", "all"], [self.severity]):
            embeddings, logits, labels = self.encoded(domain)
            known = Known(embeddings, logits)
            for order, rule in itertools.product(ORDERS, RULES):
                index = ordered(labels, order, self.generator)
                about = {"model": self.name, "domain": domain, "order": order, "rule": rule}
                yield {**about, **stream(engines[rule], known, index, labels, "/".join(about.values()))}


def stream(engine, known, index, labels, camera):
    """Let a camera see images; its accuracy, and what was estimated."""
    engine._forward = known
    right, sure, both = [], Recent(engine.classes), Recent(engine.classes)
    for part in np.array_split(index, max(1, len(index) // BATCH)):
        known.part = part
        answer = engine.predict(np.zeros((len(part), 1), np.float32), [camera] * len(part))
        right.append(answer.adapted.argmax(1) == labels[part])
        sure.add(answer.adapted)
        both.add(answer.adapted, answer.stable)
    engine.reset(camera)
    found = {"confidence": sure.estimate().value, "product": both.estimate().value}
    return {"truth": float(np.concatenate(right)[-WINDOW:].mean()), **found}


# ---- what is printed


def errors(cells, by):
    """How much too high an estimate is, in each cell."""
    return np.array([cell[by] - cell["truth"] for cell in cells])


def widths(cells, fit):
    """What holds 95 % of the errors on each of these models: how far an estimate is too high, and too low."""
    found = {}
    for by in WAYS:
        parts = [errors([cell for cell in cells if cell["model"] == model], by) for model in fit]
        quantiles = np.array([np.quantile(part, [0.025, 0.975]) for part in parts])
        high, low = max(0.0, quantiles[:, 1].max()), max(0.0, -quantiles[:, 0].min())
        found[by] = round(float(high), 2), round(float(low), 2)
    return found


def held(cells, by, width):
    """Share of cells whose truth is inside the interval of an estimate."""
    inside = []
    for cell in cells:
        low, high = interval(cell[by], min(WINDOW, LENGTH), width)
        inside.append(low <= cell["truth"] <= high)
    return float(np.mean(inside))


def report(cells):
    """Errors of each estimator by model, order and rule; its worst cells; how often its interval holds."""
    models = list(dict.fromkeys(cell["model"] for cell in cells))
    print(f"\n{len(cells)} streams. Widths of the intervals in the server: {ERROR}; from all these models:")
    print(f"{widths(cells, models)}. In brackets, how often the interval of {SHOWN[len(models) > 1]} holds.")
    print("| model | accuracy | " + " | ".join(WAYS) + " |\n|---|---|---|---|")
    for model in models:
        mine = [cell for cell in cells if cell["model"] == model]
        others = [each for each in models if each != model]
        chosen = widths(cells, others) if others else ERROR
        truth = [cell["truth"] for cell in mine]
        row = [f"{abs(errors(mine, by)).mean():.3f} ({held(mine, by, chosen[by]):.0%})" for by in WAYS]
        print(f"| {model} | {min(truth):.2f} to {max(truth):.2f} | " + " | ".join(row) + " |")
    for name, values in (("order", ORDERS), ("rule", RULES)):
        print(f"\n| {name} | " + " | ".join(WAYS) + " |\n|---|---|---|")
        for value in values:
            mine = [cell for cell in cells if cell[name] == value]
            print(f"| {value} | " + " | ".join(f"{abs(errors(mine, by)).mean():.3f}" for by in WAYS) + " |")
    print()
    for by in WAYS:
        away = errors(cells, by)
        print(f"{by}: too high by {away.mean():+.3f} on average, worst:")
        for place in np.argsort(-abs(away))[:4]:
            cell = cells[place]
            where = ", ".join(cell[name] for name in ("model", "domain", "order", "rule"))
            print(f"    {cell[by]:.2f} for {cell['truth']:.2f}: {where}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", help="a study with subjects, as neotta paper takes it")
    parser.add_argument("--cache", help="folder of embeddings")
    parser.add_argument("--json", help="file to write")
    given = parser.parse_args()
    study = Study() if given.config is None else Study.make(read_config(given.config, Study.model_fields))
    cells = []
    for about in study.subjects:
        subject = Model(about, given.cache)
        for cell in subject.cells():
            cells.append(cell)
            print(f"\r{subject.name}: {len(cells)} streams", end="", flush=True)
        print()
    known = [cell for cell in cells if np.isfinite(cell["product"])]
    print(f"The accuracy of {len(cells) - len(known)} streams of one or few classes is not known")
    cells = known
    report(cells)
    if given.json:
        with atomic(given.json) as path:
            path.write_text(json.dumps(cells, indent=1))


if __name__ == "__main__":
    main()

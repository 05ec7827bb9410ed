"""Small studies of the digits, and costs that were never measured."""

from __future__ import annotations

import itertools

import numpy as np
from scipy.special import softmax

from neotta.evaluate.costs import CostConditions, cost_record
from neotta.evaluate.plan import Run
from neotta.evaluate.records import Records
from neotta.paper import latent
from neotta.paper.evidence import Evidence, cost_of
from neotta.paper.study import Study, Subject

METHODS = ["none", "t3a", "lame", "neo"]


def small_study(**changes):
    """The digits in fog and at low contrast, unless told otherwise."""
    given = {"methods": METHODS, "samples": 48, "seeds": [2020, 1234], "batch_size": 16, "cost_batches": 1}
    return Study(**{"subjects": [Subject(corruptions=["fog", "contrast"])], **given, **changes})


def costed(folder, costs, **changes):
    """Evidence of a small study whose costs are given: milliseconds per image and MiB by method."""
    found = Evidence(small_study(**changes), folder / "records.jsonl", cache=folder / "cache")
    for method, (milliseconds, mebibytes) in costs.items():
        for setting in found.settings:
            cost = made_up_cost(method, milliseconds, mebibytes)
            Records(folder / "records.jsonl").append(cost_of(setting, cost))
    return found


def made_up_cost(method, milliseconds, mebibytes, plain=1.0, **conditions):
    """A cost that nobody measured; `plain` is the time of the unadapted model."""
    figures = {
        "threads": 1,
        "image_size": (28, 28),
        "seconds_per_image": milliseconds / 1e3,
        "plain_seconds_per_image": plain / 1e3,
        "forward_passes": 1.0,
        "backward_passes": 0.0,
        "peak_memory": None if mebibytes is None else int(mebibytes * 2**20),
    }
    made = CostConditions(model="digits", batch_size=16, **conditions)
    return cost_record(made, {"method": method, "preset": "paper", "options": {}}, figures)


def computed(evidence, setting, samples=-1):
    """Accuracy in percent and calibration error of `none` and `neo`, by domain and seed, from embeddings with numpy."""
    found = {}
    for method, domain, seed, confidence, right in answers(evidence, setting, samples):
        found[method, domain, seed] = (100 * right.mean(), calibration_error(confidence, right))
    return found


def answers(evidence, setting, samples=-1):
    """The confidence of each answer of `none` and `neo`, and whether it is right, with method, domain and seed."""
    head = evidence.bench(setting).head
    weight, bias = (part.detach().numpy().astype(np.float64) for part in (head.weight, head.bias))
    for domain, seed in itertools.product(setting.domains, setting.study.seeds):
        embeddings, labels = first_embeddings(evidence, setting, domain, seed, samples)
        for method, features in (("none", embeddings), ("neo", recentered(embeddings, setting.study.batch_size))):
            probabilities = softmax(features @ weight.T + bias, axis=1)
            yield method, domain, seed, probabilities.max(axis=1), probabilities.argmax(axis=1) == labels


def first_embeddings(evidence, setting, domain, seed, samples=-1):
    """Embeddings, (N, d) float64, and labels, (N,), in the order in which an online run sees them."""
    run = Run(method="none", domains=(domain,), seed=seed, samples=samples, batch_size=setting.study.batch_size)
    rows, labels, _ = latent.embeddings(evidence.bench(setting), run)
    return rows.numpy().astype(np.float64), labels.numpy()


def recentered(embeddings, size):
    """Every batch minus the mean of all samples so far, its own included."""
    starts = range(0, len(embeddings), size)
    return np.concatenate([embeddings[at : at + size] - embeddings[: at + size].mean(axis=0) for at in starts])


def calibration_error(confidence, right, bins=15):
    """The expected calibration error, bin by bin."""
    total = 0.0
    for number in range(bins):
        inside = (confidence > number / bins) & (confidence <= (number + 1) / bins)
        if inside.any():
            total += inside.mean() * abs(confidence[inside].mean() - right[inside].mean())
    return total

"""The digits without the machinery of evaluation: embeddings of all images, and the simplest code for a few numbers."""

import functools
import hashlib
import json

import numpy as np
import torch

from neotta.data.corrupted import CorruptedDataset, PreparedDataset
from neotta.data.drawing import shuffled
from neotta.data.opening import open_data
from neotta.models.load import load_model
from neotta.neo.split import split


@functools.cache
def _model():
    loaded = load_model("digits")
    return split(loaded.model.eval()), loaded.preprocess


@functools.cache
def embeddings(domain):
    """Embeddings of all images of `clean` or of a domain such as `fog/5`, (N, d) float64, in the order of the data."""
    (encoder, _), preprocess = _model()
    dataset = PreparedDataset(open_data("digits").dataset(), "cifar")
    if domain != "clean":
        kind, level = domain.split("/")
        dataset = CorruptedDataset(dataset, kind, int(level), "cifar")
    images = torch.stack([preprocess(dataset.read(index)) for index in range(len(dataset))])
    with torch.inference_mode():
        return torch.cat([encoder(part) for part in images.split(100)]).double().numpy()


@functools.cache
def labels():
    """Labels of all images, (N,)."""
    return np.asarray(open_data("digits").dataset().labels)


@functools.cache
def head():
    """Weight (C, d) and bias (C,), float64."""
    (_, head), _ = _model()
    return head.weight.detach().double().numpy(), head.bias.detach().double().numpy()


def permutation(seed):
    """The order from which the published split takes its samples, (N,)."""
    return torch.randperm(len(labels()), generator=torch.Generator().manual_seed(seed)).numpy()


def accuracy(domain, chosen, centroid=0.0):
    """Accuracy in percent on chosen images, with a centroid (d,) subtracted."""
    weight, bias = head()
    logits = (embeddings(domain)[chosen] - centroid) @ weight.T + bias
    return 100 * float(np.mean(logits.argmax(1) == labels()[chosen]))


def shrunk(vectors):
    """The mean of vectors (n, d), scaled down as James and Stein would."""
    mean = vectors.mean(0)
    if len(vectors) < 2:
        return np.zeros_like(mean)
    noise = np.square(vectors - mean).sum() / (len(vectors) - 1) / len(vectors)
    return mean * max(0.0, 1 - noise / np.square(mean).sum())


def batches(domain, samples, seed, size):
    """The images of an online stream batch by batch, positions (B,) each."""
    order = shuffled(len(labels()), seed, domain)[:samples]
    return [order[start : start + size] for start in range(0, samples, size)]


def domain_order(domains, seed):
    """The order in which a continual stream goes through domains."""
    return sorted(domains, key=lambda name: hashlib.sha256(json.dumps([seed, name, "sequence"]).encode()).digest())


class Neo:
    """NEO's centroid: the mean of all samples, shrunk if asked to."""

    def __init__(self, shrinkage=False):
        self.seen, self.shrinkage = [], shrinkage

    def __call__(self, vectors):
        """Take in a batch (B, d) and give the centroid (d,)."""
        self.seen.append(vectors)
        everything = np.concatenate(self.seen)
        return shrunk(everything) if self.shrinkage else everything.mean(0)


class Moving:
    """NEO-Continual's centroid: a moving average of the means of batches."""

    def __init__(self, alpha=0.1, debias=False):
        self.mean, self.count, self.alpha, self.debias = 0.0, 0, alpha, debias

    def __call__(self, vectors):
        """Take in a batch (B, d) and give the centroid (d,)."""
        self.count += 1
        self.mean = (1 - self.alpha) * self.mean + self.alpha * vectors.mean(0)
        return self.mean / (1 - (1 - self.alpha) ** self.count) if self.debias else self.mean


def nothing(vectors):
    """No adaptation."""
    return 0.0


def online(rule, domain, samples, seed, size):
    """Accuracy in percent on the samples adapted to, batch by batch."""
    found = [
        accuracy(domain, chosen, rule(embeddings(domain)[chosen])) * len(chosen)
        for chosen in batches(domain, samples, seed, size)
    ]
    return sum(found) / samples

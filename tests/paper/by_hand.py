"""The digits without the machinery of evaluation: embeddings of all images, and the simplest code for a few numbers."""

import functools

import numpy as np
import torch

from neotta.data.corrupted import CorruptedDataset
from neotta.data.opening import open_data
from neotta.data.prepared import PreparedDataset
from neotta.models.load import load_model
from neotta.models.split import split


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

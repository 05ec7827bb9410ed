"""Clean, labelled images, from which the threshold of an accuracy estimate is learnt."""

from __future__ import annotations

import numpy as np

from neotta.data.aligned import align
from neotta.data.base import ImageDataset
from neotta.data.opening import open_data
from neotta.deploy.serve.engine import Engine
from neotta.deploy.serve.estimate import learn_threshold
from neotta.deploy.serve.inputs import resizing
from neotta.errors import DataError
from neotta.neo.statefile import Array
from neotta.neo.stream_moments import softmax

MOST = 1024
"""Number of images that are used."""


def labelled(engine: Engine, spec: str) -> tuple[ImageDataset, Array]:
    """Open labelled images, and number their classes as the model does: by name, or as they are if they have none.

    Raises:
        DataError: The images have no labels, or other classes than the model.
    """
    dataset = open_data(spec).dataset()
    if dataset.labels is None:
        raise DataError(f"{spec!r} has no labels: expected folders named after the classes")
    if dataset.classes is not None:
        dataset = align(dataset, engine.labels)
    labels = np.asarray(dataset.labels)
    if labels.max() >= engine.classes:
        raise DataError(f"{spec!r} has a class {labels.max()}, but the model has only {engine.classes}")
    return dataset, labels


def clean_threshold(engine: Engine, spec: str, *, most: int = MOST, batch: int = 32) -> float:
    """Learn the threshold of `estimate` from clean images.

    Args:
        engine: The model.
        spec: What `neotta.data.open_data` takes: a folder of folders, one per class, or `LAYOUT=PATH`.
        most: Number of images that are used, spread evenly.
        batch: Number of images at a time.

    Raises:
        DataError: The images have no labels, or other classes than the model.
    """
    dataset, labels = labelled(engine, spec)
    chosen = np.unique(np.linspace(0, len(dataset) - 1, min(most, len(dataset))).astype(int))
    preprocess = resizing(engine.preprocess)
    sure, right = [], []
    for start in range(0, len(chosen), batch):
        rows = chosen[start : start + batch]
        logits = engine.forward(np.stack([preprocess.array(dataset.read(index)) for index in rows])).logits
        sure.append(softmax(logits).max(1))
        right.append(logits.argmax(1) == labels[rows])
    return learn_threshold(np.concatenate(sure), np.concatenate(right))

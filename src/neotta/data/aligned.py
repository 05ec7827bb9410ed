"""From the classes of a dataset to the outputs of a model, by name."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from neotta.data.base import DatasetView, ImageDataset
from neotta.errors import DataError


def align(dataset: ImageDataset, labels: Sequence[str]) -> ImageDataset:
    """Number a dataset's classes as a model does.

    Args:
        dataset: A dataset that names its classes.
        labels: The names of the model's outputs in order: WordNet ids, or words. Case does not matter, nor
            whether words are joined by `_`, `-` or a space.

    Returns:
        The same samples with labels that index `labels`.

    Raises:
        DataError: The dataset has no labels or no class names, or samples of classes the model does not know.
    """
    if dataset.labels is None:
        raise DataError(f"{dataset.domain} has no labels, so there is nothing to align")
    if dataset.classes is None:
        raise DataError(f"{dataset.domain} does not name its classes, so they cannot be found in the model's")
    present = np.unique(dataset.labels)
    outputs = class_outputs([dataset.classes[index] for index in present], labels, of=dataset.domain)
    table = np.zeros(len(dataset.classes), dtype=np.int64)
    table[present] = outputs
    aligned = DatasetView(dataset, dataset.domain)
    aligned.labels, aligned.classes = table[dataset.labels], tuple(labels)
    return aligned


def class_outputs(classes: Sequence[str], labels: Sequence[str], *, of: str = "the dataset") -> tuple[int, ...]:
    """The model's output for each class: what `classes=` of an adapter takes.

    Args:
        classes: Names of classes.
        labels: The names of the model's outputs in order.
        of: Whose classes they are, for the message.

    Raises:
        DataError: The model does not know some of them; they are named.
    """
    outputs = {_plain(name): index for index, name in reversed(list(enumerate(labels)))}
    strange = [name for name in classes if _plain(name) not in outputs]
    if strange:
        shown = ", ".join(strange[:5]) + (", ..." if len(strange) > 5 else "")
        raise DataError(
            f"{of} has {len(strange)} classes that the model does not know: {shown} "
            f"(the model's {len(labels)} begin with {', '.join(labels[:3])})"
        )
    return tuple(outputs[_plain(name)] for name in classes)


def shared_names(classes: Sequence[str], labels: Sequence[str]) -> set[str]:
    """The names that are in both, however their words are joined."""
    return set(map(_plain, classes)) & set(map(_plain, labels))


def _plain(name: str) -> str:
    return name.casefold().replace("_", " ").replace("-", " ").strip()

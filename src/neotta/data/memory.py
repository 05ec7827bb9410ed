"""Data that the caller has as objects: tensors, arrays, datasets and loaders of torch."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image as Pillow
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
)

from neotta._words import counted
from neotta.data.base import DataSource, ImageDataset
from neotta.errors import DataError, InputError

NAME = "data"
"""The name of data that has none."""


def data_source(data: Any, *, images: bool, groups: Any = None) -> DataSource:
    """Open data that the caller has as objects.

    Args:
        data: `(inputs, labels)` or inputs alone, as tensors or arrays; a Dataset or DataLoader of pairs, or of inputs
            alone; a dataset or source of neotta; or a mapping from the names of domains to any of these.
        images: Whether inputs are images that a preprocessing will make ready; otherwise they are what the model takes.
        groups: What each sample belongs to, (N,), if samples are not independent; by domain if there are several.

    Raises:
        DataError: The data is something else or empty, or there is not one label or group for each input.
        InputError: An input is not an image, or holds NaN.

    Example:
        >>> import torch
        >>> source = data_source((torch.zeros(4, 3, 8, 8), [0, 1, 1, 0]), images=False)
        >>> source.domains, len(source.dataset())
        (('data',), 4)
    """
    if isinstance(data, DataSource):
        return data
    parts = dict(data) if isinstance(data, Mapping) else {NAME: data}
    if not parts:
        raise DataError("the data has no domains: the mapping is empty")
    by_domain = groups if isinstance(groups, Mapping) else dict.fromkeys(parts, groups)
    if missing := [name for name in parts if name not in by_domain]:
        raise DataError(f"there are no groups for the domain {missing[0]!r}: give some for every domain")
    datasets = {str(name): _dataset(str(name), part, images, by_domain[name]) for name, part in parts.items()}
    for (name, one), (other, another) in itertools.combinations(datasets.items(), 2):
        _check_alike(name, one, other, another)
    return DataSource(NAME, None, tuple(datasets), datasets.__getitem__)


class MemoryDataset(ImageDataset):
    """Samples of one domain, each as the caller has it; the position is the id.

    Inputs are read as images, (H, W, 3) uint8, or as they are, float32.
    """

    in_memory = True

    def __init__(self, domain: str, inputs: Any, labels: Any, *, images: bool, groups: Any = None) -> None:
        self.domain, self._inputs, self._images = domain, inputs, images
        self.ids = [str(index) for index in range(len(inputs))]
        self.labels = None if labels is None else _labels(domain, labels, len(inputs))
        self.groups = None if groups is None else _groups(domain, groups, len(inputs))

    def read(self, index: int) -> NDArray[Any]:
        """The input of one sample: (H, W, 3) uint8, or what the model takes as float32."""
        value = self._inputs[index]
        value = value[0] if isinstance(value, (tuple, list)) else value
        where = f"input {index} of {self.domain!r}"
        return _image(value, where) if self._images else _array(value, where)

    def digest(self, index: int) -> str:
        """A hash of the sample itself."""
        value = self.read(index)
        return hashlib.sha256(f"{value.shape} {value.dtype}".encode() + value.tobytes()).hexdigest()[:16]


def _dataset(domain: str, data: Any, images: bool, groups: Any) -> ImageDataset:
    inputs, labels = (data, None) if isinstance(data, ImageDataset) else _pairs(domain, data)
    if len(inputs) == 0:
        raise DataError(f"{domain!r} has no samples: leave it out")
    if isinstance(data, ImageDataset):
        return data
    made = MemoryDataset(domain, inputs, labels, images=images, groups=groups)
    if isinstance(inputs, (Tensor, np.ndarray)):
        _check_finite(domain, inputs)
    else:
        made.read(0)
    return made


def _check_alike(name: str, one: ImageDataset, other: str, another: ImageDataset) -> None:
    if one.classes != another.classes and None not in (one.classes, another.classes):
        raise DataError(f"{name!r} and {other!r} have different classes: evaluate them one by one")
    mine, theirs = list(one.groups or ()), list(another.groups or ())
    if mine != theirs and (both := set(mine) & set(theirs)):
        raise DataError(
            f"the group {min(both)!r} is in {name!r} and in {other!r}, and a group lies within a domain: give groups "
            "of different domains different names"
        )


def _pairs(domain: str, data: Any) -> tuple[Any, Any]:
    if isinstance(data, DataLoader):
        return _of_loader(domain, data)
    if isinstance(data, TensorDataset):
        data = data.tensors
    if isinstance(data, Dataset):
        return _of_dataset(domain, data)
    if isinstance(data, (tuple, list)) and len(data) in (1, 2) and _is_batch(data[0]):
        return data[0], data[1] if len(data) == 2 else None
    if _is_batch(data):
        return data, None
    raise DataError(
        f"{domain!r} is a {type(data).__name__}: expected (inputs, labels) as tensors or arrays, a Dataset or "
        "DataLoader of pairs, a mapping of domains, a folder or the name of data"
    )


def _is_batch(value: Any) -> bool:
    return isinstance(value, (Tensor, np.ndarray)) and value.ndim > 1


def _of_loader(domain: str, loader: DataLoader[Any]) -> tuple[Any, Any]:
    """The loader's dataset if it only cuts that into batches; otherwise all its batches, read into memory."""
    plain = isinstance(loader.sampler, (SequentialSampler, RandomSampler)) and loader.collate_fn is default_collate
    if plain and not isinstance(loader.dataset, IterableDataset):
        return _pairs(domain, loader.dataset)
    inputs: list[Tensor] = []
    labels: list[Tensor] = []
    for batch in loader:
        pair = batch if isinstance(batch, (tuple, list)) else [batch]
        inputs.append(pair[0])
        labels += pair[1:2]
    if not inputs:
        raise DataError(f"the DataLoader of {domain!r} has no batches")
    return torch.cat(inputs), torch.cat(labels) if labels else None


def _of_dataset(domain: str, dataset: Dataset[Any]) -> tuple[Any, Any]:
    """A dataset that is read sample by sample, and the labels of all its samples."""
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise DataError(f"the dataset of {domain!r} has no length: pass a DataLoader of it")
    if len(dataset) == 0:
        return [], None
    first = dataset[0]
    if not isinstance(first, (tuple, list)) or len(first) < 2:
        return dataset, None
    targets = getattr(dataset, "targets", None)
    if targets is not None and len(targets) == len(dataset) and getattr(dataset, "target_transform", None) is None:
        return dataset, targets
    return dataset, [dataset[index][1] for index in range(len(dataset))]


def _labels(domain: str, labels: Any, count: int) -> NDArray[np.int64]:
    values = labels.cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if values.ndim != 1 or (values.size and values.dtype.kind not in "iu"):
        raise DataError(
            f"the labels of {domain!r} are {values.dtype} of shape {values.shape}: expected class numbers, (N,)"
        )
    if len(values) != count:
        raise DataError(f"{domain!r} has {counted(count, 'input')} and {counted(len(values), 'label')}: one for each")
    if values.min() < 0:
        raise DataError(f"the labels of {domain!r} begin at {values.min()}: classes are counted from 0")
    return values.astype(np.int64)


def _groups(domain: str, groups: Any, count: int) -> list[str]:
    values: Sequence[Any] = groups.tolist() if isinstance(groups, (Tensor, np.ndarray)) else list(groups)
    if len(values) != count:
        raise DataError(f"{domain!r} has {counted(count, 'input')} and {counted(len(values), 'group')}: one for each")
    return [str(value) for value in values]


def _check_finite(domain: str, inputs: Tensor | NDArray[Any]) -> None:
    values = torch.as_tensor(inputs)
    if values.is_floating_point():
        bad = (~values.isfinite()).flatten(1).any(dim=1).nonzero().flatten()
        if len(bad):
            raise InputError(
                f"{counted(len(bad), 'input')} of {domain!r} hold NaN or infinite values, the first at {int(bad[0])}: "
                "leave them out"
            )


def _array(value: Any, where: str) -> NDArray[np.float32]:
    if not isinstance(value, (Tensor, np.ndarray)) or value.dtype in (torch.uint8, np.uint8):
        raise InputError(
            f"{where} is an image that is not ready for the model: pass preprocess=neotta.Preprocess(...), too"
        )
    array = value.detach().cpu().float().numpy() if isinstance(value, Tensor) else value.astype(np.float32)
    if not np.isfinite(array).all():
        raise InputError(f"{where} holds NaN or infinite values: leave it out")
    return np.ascontiguousarray(array)


def _image(value: Any, where: str) -> NDArray[np.uint8]:
    """An image as (H, W, 3) uint8; floating values in 0..1 are rounded to 8 bits."""
    if isinstance(value, Pillow.Image):
        return np.asarray(value.convert("RGB"))
    array = value.detach().cpu().numpy() if isinstance(value, Tensor) else value
    if not isinstance(array, np.ndarray) or array.ndim != 3 or 3 not in (array.shape[0], array.shape[-1]):
        got = f"{type(value).__name__}{f' of shape {tuple(value.shape)}' if hasattr(value, 'shape') else ''}"
        raise InputError(f"{where} is a {got}: expected a Pillow image, or (3, H, W) or (H, W, 3)")
    if array.shape[-1] != 3:
        array = array.transpose(1, 2, 0)
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            raise InputError(f"{where} holds NaN or infinite values: leave it out")
        if array.min() < -1e-3 or array.max() > 1 + 1e-3:
            raise InputError(
                f"{where} runs from {array.min():.4g} to {array.max():.4g}, images from 0 to 1: if it is preprocessed "
                "already, pass the model itself, without a preprocess"
            )
        array = np.rint(array.clip(0, 1) * 255)
    return np.ascontiguousarray(array.astype(np.uint8))

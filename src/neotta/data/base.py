"""What every dataset is: images of one domain with stable ids; sources of several domains; classes found by name."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from neotta.errors import DataError

Image = NDArray[np.uint8]
"""An RGB image, (H, W, 3) uint8."""


class ImageDataset(ABC):
    """The images of one domain.

    Attributes:
        domain: Where the images come from, such as `"imagenet-c/fog/5"`.
        ids: One name per sample, unique within the domain and the same on every machine.
        labels: Class index of each sample, (N,) int64, or None if unlabelled.
        classes: The names of the classes in the order of their indices (WordNet ids for ImageNet's), or None.
        groups: What each sample belongs to, such as a video clip, if samples are not independent; None if they are.
        in_memory: Whether reading a sample is so cheap that worker processes do not pay off.
    """

    domain: str
    ids: Sequence[str]
    labels: NDArray[np.int64] | None = None
    classes: tuple[str, ...] | None = None
    groups: Sequence[str] | None = None
    in_memory: bool = False

    def __len__(self) -> int:
        return len(self.ids)

    @abstractmethod
    def read(self, index: int) -> Image:
        """Decode one sample.

        Returns:
            The image, (H, W, 3) uint8 RGB, upright.

        Raises:
            DataError: The file is truncated, not an image, or too large.
        """

    def digest(self, index: int) -> str:
        """A hash of the sample itself: the same on every machine, another for another picture."""
        image = self.read(index)
        return hashlib.sha256(f"{image.shape}".encode() + image.tobytes()).hexdigest()[:16]

    def stamp(self, index: int) -> str:
        """Something cheap that changes when the sample does on this machine, such as a file's size and time."""
        return self.digest(index)


class DatasetView(ImageDataset):
    """The samples of another dataset, seen in another way; what a subclass does not change is passed through."""

    def __init__(self, dataset: ImageDataset, domain: str) -> None:
        self.dataset, self.domain = dataset, domain
        self.ids, self.labels, self.classes = dataset.ids, dataset.labels, dataset.classes
        self.groups, self.in_memory = dataset.groups, dataset.in_memory

    def read(self, index: int) -> Image:
        """Decode one sample, (H, W, 3) uint8 RGB."""
        return self.dataset.read(index)

    def digest(self, index: int) -> str:
        """The hash of the sample in the other dataset, and how it is seen."""
        return self.dataset.digest(index) + self._view()

    def stamp(self, index: int) -> str:
        """The stamp of the sample in the other dataset, and how it is seen."""
        return self.dataset.stamp(index) + self._view()

    def _view(self) -> str:
        return ""


@dataclass(frozen=True)
class DataSource:
    """A dataset on disk, in the layout its authors publish.

    Attributes:
        layout: The name of the layout, such as `"imagenet-c"`.
        root: The folder or file, the address of data on a server, or None for data that comes with neotta.
        domains: The domains in it, such as `"fog/5"`, in the order of the paper.
        opener: Opens one domain; `dataset` calls it.
        classes: The names of the classes in the order of the labels (WordNet ids for ImageNet's), or None.
        class_indices: For a dataset that by definition has fewer classes than the model (ImageNet-R: 200 of
            1000), the model's output for each class, increasing. None where all outputs take part.
        class_groups: For data whose classes are categories of several classes of a model, these by name or number.
        notes: What a user should know of how the data was understood.
    """

    layout: str
    root: Path | str | None
    domains: tuple[str, ...]
    opener: Callable[[str], ImageDataset] = field(repr=False)
    classes: tuple[str, ...] | None = None
    class_indices: tuple[int, ...] | None = None
    class_groups: Mapping[str, Sequence[int | str]] | None = None
    notes: tuple[str, ...] = ()

    def dataset(self, domain: str | None = None) -> ImageDataset:
        """Open one domain; its name may be left out where there is only one.

        Raises:
            DataError: There is no such domain (the message says which there are), or no image in it.
        """
        if domain is None:
            if len(self.domains) != 1:
                raise DataError(f"{self} has {len(self.domains)} domains, name one: {self._overview()}")
            domain = self.domains[0]
        if domain not in self.domains:
            raise self._missing(domain)
        dataset = self.opener(domain)
        if len(dataset) == 0:
            raise DataError(f"{self} holds no images in domain {domain!r}")
        return dataset

    def only(self, wanted: Sequence[str]) -> DataSource:
        """Keep some of the domains.

        Args:
            wanted: Names (`"fog/5"`), corruptions with all their severities (`"fog"`), or patterns (`"*/5"`).

        Returns:
            A source with these domains, in the order asked for.
        """
        names: dict[str, None] = {}
        for pattern in wanted:
            short = pattern.removeprefix(f"{self.layout}/")
            matches = [name for name in self.domains if fnmatchcase(name, short) or name.startswith(f"{short}/")]
            if not matches:
                raise self._missing(pattern)
            names.update(dict.fromkeys(matches))
        return dataclasses.replace(self, domains=tuple(names))

    def _missing(self, domain: str) -> DataError:
        name = domain.partition("/")[0]
        near = tuple(other for other in self.domains if other.startswith(f"{name}/"))
        return DataError(f"{self} has no domain {domain!r}; there is {self._overview(near or self.domains)}")

    def _overview(self, domains: Sequence[str] | None = None) -> str:
        """`fog/1,2,5; snow/1`: a short list of many names."""
        groups: dict[str, list[str]] = {}
        for domain in self.domains if domains is None else domains:
            name, _, severity = domain.partition("/")
            groups.setdefault(name, []).append(severity)
        return "; ".join(f"{name}/{','.join(parts)}".rstrip("/") for name, parts in groups.items())

    def __str__(self) -> str:
        return self.layout if self.root is None else f"{self.layout} at {str(self.root)!r}"


def full_name(layout: str, domain: str) -> str:
    """The name a dataset carries: `"imagenet-c/fog/5"`, but `"imagenet-r"` where the layout is the domain."""
    return domain if domain == layout else f"{layout}/{domain}"


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
    """The model's output for each class: what `classes=` of an adapter takes; `of` is for the message."""
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


def first_image(dataset: ImageDataset) -> Image:
    """The first image that can be read, of the first hundred: one that cannot is skipped here as everywhere."""
    tried = min(len(dataset), 100)
    for index in range(tried - 1):
        with contextlib.suppress(DataError):
            return dataset.read(index)
    return dataset.read(max(0, tried - 1))

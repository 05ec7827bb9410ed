"""The domains of some data: its own, or its images corrupted."""

from __future__ import annotations

import contextlib
import functools
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neotta.data.base import (
    DatasetView,
    DataSource,
    Image,
    ImageDataset,
    align,
    class_outputs,
    first_image,
    shared_names,
)
from neotta.data.class_groups import ClassGroups
from neotta.data.corrupted import CorruptedDataset, PreparedDataset
from neotta.data.corruptions import CORRUPTIONS
from neotta.data.drawing import Indices
from neotta.data.layouts.cifar import CLASSES as CIFAR10
from neotta.data.layouts.imagenet import imagenet_wnids
from neotta.data.opening import open_data
from neotta.data.order import Order
from neotta.data.orders import BAD_FRAMES_DOMAIN, BadFrames
from neotta.errors import DataError, OptionError
from neotta.evaluate.plan import Plan
from neotta.evaluate.records import content_key
from neotta.models.preprocess import Preprocess

CLEAN_NAMES = ("clean", "none", "original")
"""What domains without a shift are called."""
CLEAN_LAYOUTS = ("digits", "cifar-10", "tiny-imagenet", "imagenet")
"""Layouts of data such as models are trained on."""
SHIFTED_LAYOUTS = (
    "imagenet-r",
    "imagenet-a",
    "imagenet-sketch",
    "imagenet-v2",
    "imagenet-3dcc",
    "imagenet-c-bar",
    "ccc",
)
"""Layouts of data that differs from what models are trained on as it is."""


@dataclass(frozen=True)
class CleanImages:
    """Clean images, drawn from a dataset in an order that is always the same."""

    dataset: ImageDataset
    preprocess: Preprocess  # what makes them ready for the model

    def images(self, count: int) -> Tensor:
        """So many images, preprocessed, (count, 3, H, W)."""
        images: list[Image] = []
        for index in self._order():
            if len(images) == count:
                break
            with contextlib.suppress(DataError):
                images.append(self.dataset.read(index))
        self.check(count, len(images))
        return torch.stack([self.preprocess(image) for image in images])

    def digest(self, count: int) -> str:
        drawn = [_digest(self.dataset, index) for index in self._order()[:count]]
        return content_key({"images": drawn, "preprocess": self.preprocess.to_dict()})

    def check(self, count: int, readable: int | None = None) -> None:
        """Raise a `DataError` if there are not so many images, or so many that can be read."""
        available = len(self.dataset) if readable is None else readable
        if available < count:
            raise DataError(f"{count} clean images are needed, and {self.dataset.domain!r} has {available}")

    def _order(self) -> list[int]:
        order: list[int] = np.random.default_rng(0).permutation(len(self.dataset)).tolist()
        return order


def _digest(dataset: ImageDataset, index: int) -> str:
    try:
        return dataset.digest(index)
    except (DataError, OSError):  # it cannot be read, and will be passed over
        return ""


def open_source(spec: str) -> ImageDataset:
    """Open what `source` of a plan names: `PATH` or `LAYOUT=PATH`, and after a colon a domain of it."""
    path, colon, domain = spec.rpartition(":")
    if not colon or "=" in domain or domain.startswith("//") or Path(spec.rpartition("=")[2]).exists():
        path, domain = spec, ""
    source = open_data(path)
    return source.dataset(domain or clean_domain(source))


def clean_domain(source: DataSource) -> str | None:
    """The domain of some data that is clean by its name or by the layout, if there is one."""
    named = (name for name in source.domains if name.split("/")[0] in CLEAN_NAMES)
    return next(named, source.domains[0] if source.layout in CLEAN_LAYOUTS else None)


def fitted(preprocess: Preprocess, dataset: ImageDataset) -> Preprocess:
    """The preprocessing, without resizing where images have the model's size already: the protocol of ImageNet-C."""
    with contextlib.suppress(DataError):
        if isinstance(preprocess, Preprocess) and first_image(dataset).shape[:2] == tuple(preprocess.size):
            return replace(preprocess, resize=None)
    return preprocess


CLEAN, ALL = "clean", "all"
SOURCE_DATA = "source (in a plan, a study or Python)"


class Domains:
    """Datasets by the names that records use, with labels that are positions in the model's output.

    Attributes:
        whole: The data.
        source: Only the domains of the plan.
        preprocess: The model's, without resizing if the images already have its input size.
        class_indices: The model's classes that the data has, if it has only some (ImageNet-R); else None.
        class_groups: The model's classes for each category of the data, if it has such; else None.
        classes: Number of classes that answers are among, if it is known.
    """

    def __init__(
        self,
        plan: Plan,
        labels: Sequence[str] | None,
        preprocess: Preprocess,
        outputs: int | None = None,
        source: DataSource | None = None,
    ) -> None:
        self._plan, self._labels, self._preprocess, self._outputs = plan, labels, preprocess, outputs
        self.corrupted = bool(plan.corruptions)
        self.whole = open_data(plan.data) if source is None else source
        self.source = self.whole.only(list(plan.domains)) if plan.domains else self.whole
        self._source_data = None if plan.source is None else open_source(plan.source)
        self._open: dict[str, ImageDataset] = {}
        self._facts: dict[str, tuple[int, int]] = {}
        self._digests: dict[tuple[str, int], list[Any]] = {}
        self._groups: dict[str, Indices | None] = {}
        self.class_indices = _class_indices(self.source, labels)
        groups = self.source.class_groups
        self.class_groups = None if groups is None else ClassGroups.of(groups, labels, outputs or 0)
        fewer = self.class_indices if self.class_groups is None else self.class_groups.names
        self.classes = outputs if fewer is None else len(fewer)
        first = CLEAN if self.corrupted else self.source.domains[0]
        self.preprocess = fitted(preprocess, self.dataset(first))
        if plan.group_by is not None:
            self.groups(first)  # a pattern that does not fit is known at once

    def names(self, corruptions: Sequence[str] = (), severities: Sequence[int] = (5,)) -> tuple[str, ...]:
        """The names of the domains, in order: those of the data, or of these corruptions (`"all"` for the 15).

        A corruption may have a severity of its own: `"fog/3"`, `"all/3"`.
        """
        if not self.corrupted:
            return self.source.domains
        names = []
        for each in corruptions:
            kinds, level = corruption(each)
            levels = severities if level is None else [level]
            names += [CLEAN if kind == CLEAN else f"{kind}/{level}" for kind in kinds for level in levels]
        for name in names:
            self.dataset(name)
        return tuple(dict.fromkeys(names))

    def dataset(self, name: str) -> ImageDataset:
        if name not in self._open and name.startswith(BAD_FRAMES_DOMAIN):
            self._open[name] = BadFrames.of(name)
        if name not in self._open:
            self._open[name] = self._aligned(self._corrupted(name) if self.corrupted else self.source.dataset(name))
        return self._open[name]

    def groups(self, name: str) -> Indices | None:
        """A number for what each sample of a domain belongs to, (N,), counted within its ids; None if undeclared."""
        if name not in self._groups:
            dataset = self.dataset(name)
            by_id = self._plan.group_by is not None and not name.startswith(BAD_FRAMES_DOMAIN)
            names = _grouped(dataset.ids, str(self._plan.group_by)) if by_id else dataset.groups
            self._groups[name] = None if names is None else np.unique(names, return_inverse=True)[1].astype(np.int64)
        return self._groups[name]

    def facts(self, name: str) -> tuple[int, int]:
        """The number of images of a domain, and of its rarest class; 0 if there are no labels."""
        if name not in self._facts:
            labels = self.dataset(name).labels
            fewest = 0 if labels is None or not len(labels) else int(np.unique(labels, return_counts=True)[1].min())
            self._facts[name] = len(self.dataset(name)), fewest
        return self._facts[name]

    def digest(self, order: Order) -> str:
        """A hash of the images and labels of an order: other data under the same names has another."""
        names = [order.domains[domain] for domain in order.domain]
        samples = zip(names, order.index.tolist(), strict=True)
        return content_key({"samples": [self._sample(*sample) for sample in samples]})

    def _sample(self, name: str, index: int) -> list[Any]:
        if (name, index) not in self._digests:
            dataset = self.dataset(name)
            label = None if dataset.labels is None else int(dataset.labels[index])
            self._digests[name, index] = [_digest(dataset, index), label]
        return self._digests[name, index]

    @property
    def family(self) -> str:
        """The dataset that this is, or is a corrupted copy of, as presets name it: `"cifar10"`."""
        if self.source.classes == CIFAR10:
            return "cifar10"
        return self.source.layout.removesuffix("-c").replace("-", "")

    @property
    def has_clean(self) -> bool:
        try:
            return bool(self.clean)
        except DataError:
            return False

    @functools.cached_property
    def clean(self) -> CleanImages:
        """Clean images for methods that need some: of the source data, or of this data's own clean domain."""
        if self._source_data is not None:
            return CleanImages(self._source_data, fitted(self._preprocess, self._source_data))
        if self.corrupted and self.source.layout not in SHIFTED_LAYOUTS:
            return CleanImages(self.dataset(CLEAN), self.preprocess)
        name = None if self.corrupted else clean_domain(self.whole)
        if name is None:
            raise DataError(f"clean images are needed, and {self.source} has no clean domain: give {SOURCE_DATA}")
        dataset = self.whole.dataset(name)
        return CleanImages(dataset, fitted(self._preprocess, dataset))

    def _corrupted(self, name: str) -> ImageDataset:
        if name == CLEAN:
            return self._clean
        kind, _, level = name.rpartition("/")  # the kind may be a path: py:dir/file.py:function
        return CorruptedDataset(self._clean, kind, int(level), self._preset)

    @functools.cached_property
    def _clean(self) -> ImageDataset:
        return PreparedDataset(self.source.dataset(), self._preset)

    @functools.cached_property
    def _preset(self) -> str:
        if self._plan.corruption_preset is not None:
            return self._plan.corruption_preset
        side = min(first_image(self.source.dataset()).shape[:2])
        return "cifar" if side < 48 else "tiny" if side < 128 else "imagenet"

    def _aligned(self, dataset: ImageDataset) -> ImageDataset:
        if self.class_groups is not None:  # which its labels count already
            return dataset
        aligned = self._by_name(self._with_names(dataset))
        largest = (
            -1 if aligned.labels is None or self.class_indices is not None else int(aligned.labels.max(initial=-1))
        )
        if self._outputs is not None and largest >= self._outputs:
            raise DataError(
                f"{dataset.domain!r} has a class {largest}, and the model has {self._outputs} classes, "
                "counted from 0: give the model of these classes, or leave the others out"
            )
        return aligned

    def _with_names(self, dataset: ImageDataset) -> ImageDataset:
        if not self._plan.class_names or dataset.classes is None:
            return dataset
        view = DatasetView(dataset, dataset.domain)
        view.classes = tuple(self._plan.class_names.get(name, name) for name in dataset.classes)
        if self._labels is None and dataset.labels is not None:  # the names are numbers of the model's outputs
            return align(view, [str(output) for output in range(self._outputs or 0)])
        return view

    def _by_name(self, dataset: ImageDataset) -> ImageDataset:
        if self.class_indices is not None or self._labels is None or dataset.labels is None or dataset.classes is None:
            return dataset
        if shared_names(dataset.classes, self._labels) or len(dataset.classes) != len(self._labels):
            return align(dataset, self._labels)
        if not any(_only_numbers(names) for names in (dataset.classes, self._labels)):
            first, second = (", ".join(names[:3]) for names in (dataset.classes, self._labels))
            warnings.warn(
                f"none of the {len(dataset.classes)} classes of the data ({first}, ...) is among the model's "
                f"({second}, ...): they are taken to be in the same order. If they are not, every accuracy is wrong: "
                "give both the same names (of folders, or the model's option 'labels')",
                stacklevel=2,
            )
        return dataset


def _grouped(ids: Sequence[str], group_by: str) -> list[str]:
    try:
        pattern = re.compile(r"(.+)[/\\]" if group_by == "folder" else group_by)
    except re.error as error:
        raise OptionError(f"group_by is {group_by!r}, which is neither 'folder' nor a pattern: {error}") from None
    matches = {name: pattern.search(name) for name in ids}
    if strange := [name for name, match in matches.items() if match is None]:
        raise DataError(f"the image {strange[0]!r} belongs to nothing by group_by={group_by!r}")
    return [match[1 if pattern.groups else 0] or "" for match in matches.values() if match is not None]


def corruption(name: str) -> tuple[tuple[str, ...], int | None]:
    """The corruptions that a name means, and its severity if it has one: `"fog"`, `"fog/3"`, `"all"`, `"all/3"`."""
    kind, _, level = name.rpartition("/")
    if not kind or level not in ("1", "2", "3", "4", "5"):  # a path of py: may have a slash, too
        kind, level = name, ""
    return tuple(CORRUPTIONS) if kind == ALL else (kind,), int(level) if level else None


def _only_numbers(names: Sequence[str]) -> bool:
    return tuple(names) == imagenet_wnids() or all(re.fullmatch(r"(label|class)?[ _-]?\d+", n, re.I) for n in names)


def _class_indices(source: DataSource, labels: Sequence[str] | None) -> list[int] | None:
    if source.class_indices is None:
        return None
    if labels is not None and source.classes is not None and not set(source.classes).isdisjoint(labels):
        return list(class_outputs(source.classes, labels))
    return list(source.class_indices)

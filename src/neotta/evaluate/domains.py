"""The domains of some data: its own, or its images corrupted."""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Sequence
from typing import Any

from neotta.data.aligned import align, class_outputs, shared_names
from neotta.data.bad_frames import DOMAIN as BAD_FRAMES
from neotta.data.bad_frames import BadFrames
from neotta.data.base import ImageDataset
from neotta.data.blended import Blend, BlendedDataset
from neotta.data.corrupted import CorruptedDataset, PreparedDataset
from neotta.data.corruptions import CORRUPTIONS
from neotta.data.layouts.cifar import CLASSES as CIFAR10
from neotta.data.layouts.imagenet import imagenet_wnids
from neotta.data.opening import open_data
from neotta.data.order import Order
from neotta.data.source import DataSource
from neotta.errors import DataError
from neotta.evaluate.clean_images import (
    SHIFTED_LAYOUTS,
    CleanImages,
    clean_domain,
    first_image,
    fitted,
    open_source,
)
from neotta.evaluate.records import content_key
from neotta.models.preprocess import Preprocess

CLEAN, ALL = "clean", "all"
SOURCE_DATA = "--source-data (in a plan: source)"


class Domains:
    """Datasets by the names that records use, with labels that are positions in the model's output.

    Args:
        data: What `neotta.data.open_data` takes, or what it returned.
        labels: The model's class names.
        preprocess: The model's preprocessing.
        domains: Only these domains of the data; all if empty.
        corrupted: Whether domains are corruptions of the data's images (`"fog/5"`), or these themselves (`"clean"`).
        preset: Of the corruptions; by default chosen by the size of the images.
        seed: Of the corruptions.
        source_data: Clean images of the source domain, as `open_source` takes it; by default those of the data.

    Attributes:
        source: The data.
        preprocess: The model's, without resizing if the images already have its input size.
        kept: The model's classes that the data has, if it has only some (ImageNet-R); else None.
    """

    def __init__(
        self,
        data: str | DataSource,
        labels: Sequence[str] | None,
        preprocess: Preprocess,
        *,
        domains: Sequence[str] = (),
        corrupted: bool = False,
        preset: str | None = None,
        seed: int = 0,
        source_data: str | None = None,
    ) -> None:
        self._labels, self._preprocess = labels, preprocess
        self.corrupted, self._asked_preset, self._seed = corrupted, preset, seed
        self._whole = open_data(data) if isinstance(data, str) else data
        self.source = self._whole.only(list(domains)) if domains else self._whole
        self._source_data = None if source_data is None else open_source(source_data)
        self._open: dict[str, ImageDataset] = {}
        self._digests: dict[tuple[str, int], list[Any]] = {}
        self.kept = _kept(self.source, labels)
        self.preprocess = fitted(preprocess, self.dataset(CLEAN if corrupted else self.source.domains[0]))

    def names(self, corruptions: Sequence[str] = (), severities: Sequence[int] = (5,)) -> tuple[str, ...]:
        """The names of the domains, in order: those of the data, or of these corruptions (`"all"` for the 15).

        Raises:
            OptionError: There is no such corruption.
        """
        if not self.corrupted:
            return self.source.domains
        kinds = [kind for each in corruptions for kind in (CORRUPTIONS if each == ALL else [each])]
        names = [CLEAN if kind == CLEAN else f"{kind}/{level}" for kind in kinds for level in severities]
        for name in names:
            self.dataset(name)
        return tuple(dict.fromkeys(names))

    def dataset(self, name: str) -> ImageDataset:
        """Open a domain."""
        if name not in self._open and name.startswith(BAD_FRAMES):
            self._open[name] = self.bad_frames
        if name not in self._open:
            self._open[name] = self._aligned(self._corrupted(name) if self.corrupted else self.source.dataset(name))
        return self._open[name]

    @functools.cached_property
    def bad_frames(self) -> ImageDataset:
        """Frames that show nothing, of the size of the images."""
        height, width = first_image(self.dataset(CLEAN if self.corrupted else self.source.domains[0])).shape[:2]
        return BadFrames(height, width)

    def digest(self, order: Order) -> str:
        """A hash of the images and labels of an order: other data under the same names has another."""
        names = [order.domains[domain] for domain in order.domain]
        samples = zip(names, order.index.tolist(), strict=True)
        return content_key({"samples": [self._sample(*sample) for sample in samples]})

    def _sample(self, name: str, index: int) -> list[Any]:
        """Hash and label of a sample; the hash is empty if the sample cannot be read."""
        if (name, index) not in self._digests:
            dataset = self.dataset(name)
            try:
                digest = dataset.digest(index)
            except (DataError, OSError):
                digest = ""
            self._digests[name, index] = [digest, None if dataset.labels is None else int(dataset.labels[index])]
        return self._digests[name, index]

    @property
    def family(self) -> str:
        """The dataset that this is, or is a corrupted copy of, as presets name it: `"cifar10"`."""
        if self.source.classes == CIFAR10:
            return "cifar10"
        return self.source.layout.removesuffix("-c").replace("-", "")

    @property
    def has_source_data(self) -> bool:
        """Whether clean images come from elsewhere."""
        return self._source_data is not None

    @property
    def has_clean(self) -> bool:
        """Whether there are clean images."""
        try:
            return bool(self.clean)
        except DataError:
            return False

    @functools.cached_property
    def clean(self) -> CleanImages:
        """Clean images for methods that need some: of the source data, or of this data's own clean domain.

        Raises:
            DataError: There are none.
        """
        if self._source_data is not None:
            return CleanImages(self._source_data, fitted(self._preprocess, self._source_data))
        if self.corrupted and self.source.layout not in SHIFTED_LAYOUTS:
            return CleanImages(self.dataset(CLEAN), self.preprocess)
        name = None if self.corrupted else clean_domain(self._whole)
        if name is None:
            raise DataError(f"clean images are needed, and {self.source} has no clean domain: give {SOURCE_DATA}")
        dataset = self._whole.dataset(name)
        return CleanImages(dataset, fitted(self._preprocess, dataset))

    def _corrupted(self, name: str) -> ImageDataset:
        if name == CLEAN:
            return self._clean
        blend = Blend.parse(name)
        if blend is not None:
            return BlendedDataset(self._clean, blend, self._preset, self._seed)
        kind, _, level = name.rpartition("/")  # the kind may be a path: py:dir/file.py:function
        return CorruptedDataset(self._clean, kind, int(level), self._preset, self._seed)

    @functools.cached_property
    def _clean(self) -> ImageDataset:
        return PreparedDataset(self.source.dataset(), self._preset)

    @functools.cached_property
    def _preset(self) -> str:
        """The parameters of the corruptions that were made for images of about this size."""
        if self._asked_preset is not None:
            return self._asked_preset
        side = min(first_image(self.source.dataset()).shape[:2])
        return "cifar" if side < 48 else "tiny" if side < 128 else "imagenet"

    def _aligned(self, dataset: ImageDataset) -> ImageDataset:
        """Labels as positions in the logits; data whose classes have other names keeps its own numbers."""
        if self.kept is not None or self._labels is None or dataset.labels is None or dataset.classes is None:
            return dataset
        if shared_names(dataset.classes, self._labels) or len(dataset.classes) != len(self._labels):
            return align(dataset, self._labels)
        if not any(_only_numbers(names) for names in (dataset.classes, self._labels)):
            self._warn_of_names(dataset.classes)
        return dataset

    def _warn_of_names(self, classes: Sequence[str]) -> None:
        labels = self._labels or ()
        warnings.warn(
            f"none of the {len(classes)} classes of the data ({', '.join(classes[:3])}, ...) is among the model's "
            f"({', '.join(labels[:3])}, ...): they are taken to be in the same order. If they are not, every accuracy "
            "is wrong: give both the same names (of folders, or the model's option 'labels')",
            stacklevel=2,
        )


def _only_numbers(names: Sequence[str]) -> bool:
    """Names that say no more than a position: `7`, `LABEL_7`, `class 7`; and ImageNet's ids, whose order all share."""
    return tuple(names) == imagenet_wnids() or all(re.fullmatch(r"(label|class)?[ _-]?\d+", n, re.I) for n in names)


def _kept(source: DataSource, labels: Sequence[str] | None) -> list[int] | None:
    """Which classes of the model the data has, where the dataset is defined on some of them only."""
    if source.class_indices is None:
        return None
    if labels is not None and source.classes is not None and not set(source.classes).isdisjoint(labels):
        return list(class_outputs(source.classes, labels))
    return list(source.class_indices)
